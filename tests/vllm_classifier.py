"""Train the last layer of a tiny classifier, and write it as a checkpoint that vLLM serves.

Run by the interpreter of ``.venv-vllm``: ``python vllm_classifier.py MINILM OUT``, with
``{"texts": [[query or null, text], ...], "wrong": [bool, ...]}`` as JSON on its standard input. MiniLM is
unchanged, except for a linear layer over its pooled output, fitted to the examples. The script writes two
checkpoints: ``classify`` with two classes and ``score`` with one. It prints the outputs of transformers for
the
texts, for comparison with the server's answers. All texts are training texts, so the result does not measure
accuracy.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    import torch  # type: ignore[import-not-found]
    from transformers import (  # type: ignore[import-not-found]
        AutoTokenizer,
        BertForSequenceClassification,
    )

    minilm, out = map(Path, sys.argv[1:3])
    told = json.load(sys.stdin)
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    wrong = torch.tensor(told["wrong"], dtype=torch.float32)
    said: dict[str, list[float]] = {}
    for name, classes in (("classify", 2), ("score", 1)):
        model = BertForSequenceClassification.from_pretrained(minilm, num_labels=classes).eval()
        texts = [(None, text) if classes == 2 else (query, text) for query, text in told["texts"]]
        pooled = torch.cat([_pooled(model, tokenizer, *one) for one in texts])
        _fit(model.classifier, pooled, wrong)
        with torch.no_grad():
            logits = model.classifier(pooled)
        said[name] = (logits.softmax(-1)[:, 1] if classes == 2 else logits.sigmoid()[:, 0]).tolist()
        model.save_pretrained(out / name)
        tokenizer.save_pretrained(out / name)
    print(json.dumps(said))


def _pooled(model: Any, tokenizer: Any, query: str | None, text: str) -> Any:
    import torch

    pair = (text,) if query is None else (query, text)
    with torch.no_grad():
        return model.bert(**tokenizer(*pair, return_tensors="pt")).pooler_output


def _fit(layer: Any, pooled: Any, wrong: Any) -> None:
    """Fit a logistic regression with a small ridge, by full-batch L-BFGS."""
    import torch

    optimiser = torch.optim.LBFGS(layer.parameters(), max_iter=200)

    def loss() -> Any:
        optimiser.zero_grad()
        logits = layer(pooled)
        margin = logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits[:, 0]
        value = torch.nn.functional.binary_cross_entropy_with_logits(margin, wrong)
        value = value + 1e-6 * sum((part**2).sum() for part in layer.parameters())
        value.backward()
        return value

    optimiser.step(loss)


if __name__ == "__main__":
    main()
