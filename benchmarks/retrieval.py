"""Retrieval and selection of schemata: time per query, memory, exactness, and the quality of a selection.

Run: .venv/bin/python benchmarks/retrieval.py [--only search|select] [--sizes 100 1000 10000 100000]
         [--vectorisers hashing tfidf_svd sentence endpoint] [--endpoint URL MODEL]
         [--queries 1000] [--repeats 5] [--json]

The schemata are synthetic, from the closed vocabulary of step profiles (benchmarks/retrieval_data.py). A
separate process with one core measures each row:

    add           milliseconds to encode and add a schema
    p50, p99      milliseconds per query for ten schemata, encoding included
    cpu p50, p99  the same in processor time, which other processes disturb less; from the repeat with the
                  least disturbance
    run           milliseconds for a run of 30 steps in one query
    MB            growth of the process: imports, schemata and vectors
    same          share of the results that are the nearest ten in double precision

Peers answer the same queries from the same vectors in the same process, in turns with ours. Their ratio is
their p50 over ours: above 1, ours is faster. scikit-learn is always measured; faiss and hnswlib (approximate)
are measured if they are installed.

Bars: 10,000 schemata with hashing: cpu p99 of at most 2 ms, growth of at most 200 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
BAR_MS, BAR_MB, BAR_AT = 2.0, 200.0, 10_000
TRAITS, K, STEPS = 0.3, 10, 30
SLOW = {"sentence": 1_000, "endpoint": 1_000}
"""Vectorisers that take too long for more schemata."""


def peak_mb() -> float:
    """Return the peak memory of the process, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def clocked(work: Callable[[], Any]) -> tuple[float, float]:
    """Return ``(wall, processor)`` milliseconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return (time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3


def percentile(values: Sequence[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * share))]


def search_row(name: str, size: int, queries: int, repeats: int, endpoint: Sequence[str]) -> dict[str, Any]:
    """Measure one vectoriser at one size, in this process."""
    before = peak_mb()
    import numpy as np
    from retrieval_data import sample

    from agentguard.schemata.index import SchemaIndex
    from agentguard.schemata.vectors.base import vectorisers

    options = dict(zip(("base_url", "model"), endpoint, strict=False)) if name == "endpoint" else {}
    drawn = sample(size, queries)
    fit_start = time.perf_counter()
    vectoriser = vectorisers().get(name)(**options).fit([s.to_text() for s in drawn.schemata])
    fit_s = time.perf_counter() - fit_start
    index = SchemaIndex(None if name == "hashing" else vectoriser, trait_weight=TRAITS)
    index.encode(drawn.asked[:1])  # loads the model
    add_ms, _ = clocked(lambda: index.add(drawn.schemata))
    for portrait in drawn.asked[:10]:
        index.search([portrait], K)
    tries = [
        [clocked(lambda portrait=portrait: index.search([portrait], K)) for portrait in drawn.asked]
        for _ in range(repeats)
    ]
    costs = min(tries, key=lambda made: percentile([cpu for _, cpu in made], 0.99))
    run_ms = min(clocked(lambda: index.search(drawn.asked[:STEPS], K))[0] for _ in range(3))
    grown = peak_mb() - before
    ids, vectors = index.vectors()
    asked = index.encode(drawn.asked[:200])
    exact = asked.astype(np.float64) @ vectors.T.astype(np.float64)
    best = [{ids[i] for i in np.argsort(-row, kind="stable")[:K]} for row in exact]
    ours = [{m.schema.id for m in found} for found in index.search(drawn.asked[:200], K)]
    p50 = percentile([wall for wall, _ in costs], 0.5)
    return {
        "vectoriser": name,
        "schemata": size,
        "dims": vectors.shape[1],
        "fit_s": fit_s,
        "add_ms": add_ms / size,
        "p50_ms": p50,
        "p99_ms": percentile([wall for wall, _ in costs], 0.99),
        "cpu_p50_ms": percentile([cpu for _, cpu in costs], 0.5),
        "cpu_p99_ms": percentile([cpu for _, cpu in costs], 0.99),
        "run_ms": run_ms,
        "grown_mb": grown,
        "same": share_same(ours, best),
        "peers": peers(index, vectors, drawn.asked[:200], best, ids) if size >= K else {},
    }


def share_same(found: Sequence[set[str]], best: Sequence[set[str]]) -> float:
    return sum(len(a & b) for a, b in zip(found, best, strict=True)) / max(1, sum(map(len, best)))


def peers(
    index: Any, vectors: Any, asked: Sequence[Any], best: Sequence[set[str]], ids: Sequence[str]
) -> dict[str, Any]:
    """Return each peer with its p50, our p50 over the same queries, and its share of the nearest results."""
    found = {}
    for name, make in (("sklearn", _sklearn), ("faiss", _faiss), ("hnswlib", _hnswlib)):
        try:
            start = time.perf_counter()
            lookup = make(vectors)
        except ImportError:
            continue
        build_s = time.perf_counter() - start
        theirs, ours, rows = [], [], []
        for item in asked:
            ours.append(clocked(lambda item=item: index.search([item], K))[0])
            kept: list[Any] = []
            theirs.append(clocked(partial(_put, kept, lookup, index, item))[0])
            rows.append({ids[i] for i in kept[0]})
        p50, own = percentile(theirs, 0.5), percentile(ours, 0.5)
        found[name] = {"build_s": build_s, "p50_ms": p50, "ratio": p50 / own, "same": share_same(rows, best)}
    return found


def _put(kept: list[Any], lookup: Callable[[Any], Any], index: Any, item: Any) -> None:
    kept.append(lookup(index.encode([item])))


def _sklearn(vectors: Any) -> Callable[[Any], Any]:
    from sklearn.neighbors import NearestNeighbors

    held = NearestNeighbors(metric="cosine", algorithm="brute", n_jobs=1).fit(vectors)
    return lambda query: held.kneighbors(query, K, return_distance=False)[0]


def _faiss(vectors: Any) -> Callable[[Any], Any]:
    import faiss  # type: ignore[import-not-found]

    faiss.omp_set_num_threads(1)
    held = faiss.IndexFlatIP(vectors.shape[1])
    held.add(vectors)
    return lambda query: held.search(query, K)[1][0]


def _hnswlib(vectors: Any) -> Callable[[Any], Any]:
    import hnswlib  # type: ignore[import-not-found]

    held = hnswlib.Index(space="ip", dim=vectors.shape[1])
    held.init_index(max_elements=len(vectors), ef_construction=200, M=16, random_seed=1)
    held.set_num_threads(1)
    held.add_items(vectors)
    held.set_ef(100)
    return lambda query: held.knn_query(query, K)[0][0]


def select_rows(size: int, shares: Sequence[float]) -> list[dict[str, Any]]:
    """Measure selections: a new failure is found if its nearest schema is of its kind and not spoilt."""
    import numpy as np
    from retrieval_data import sample

    from agentguard.schemata.index import SchemaIndex
    from agentguard.schemata.selection import select_schemata

    drawn = sample(size, 2_000, seed=11)
    index = SchemaIndex(trait_weight=TRAITS)
    index.add(drawn.schemata)
    vectors, asked = index.vectors()[1], index.encode(drawn.asked)
    of, wanted = np.array(drawn.of), np.array(drawn.asked_of)
    hard = np.array([drawn.kinds[kind].hard for kind in drawn.asked_of])
    place = {schema.id: i for i, schema in enumerate(drawn.schemata)}
    even = dict.fromkeys(place, 1.0)

    spoilt = np.array(drawn.spoilt)

    def search_kept(kept: Sequence[int]) -> Any:
        rows = np.array(sorted(kept))
        nearest = rows[(asked @ vectors[rows].T).argmax(axis=1)]
        return (of[nearest] == wanted) & ~spoilt[nearest]

    def find_places(ids: Sequence[str]) -> list[int]:
        return [place[name] for name in ids]

    whole = search_kept(range(size))
    made = []
    for share in shares:
        budget = max(1, round(share * size))
        ways: dict[str, Callable[[int], list[int]]] = {
            "select": lambda b: find_places(
                select_schemata(drawn.schemata, vectors, b, difficulty=drawn.difficulty)
            ),
            "diversity only": lambda b: find_places(
                select_schemata(drawn.schemata, vectors, b, difficulty=even, dependability=even)
            ),
            "k-medoids": lambda b: k_medoids(vectors, b),
            "k-centre": lambda b: k_centre(vectors, b),
            "random": lambda b: np.random.default_rng(0).choice(size, b, replace=False).tolist(),
        }
        for name, way in ways.items():
            kept: list[int] = []
            seconds = clocked(lambda way=way, kept=kept, budget=budget: kept.extend(way(budget)))[1] / 1e3
            hit = search_kept(kept)
            made.append(
                {
                    "way": name,
                    "of": size,
                    "kept": budget,
                    "seconds": seconds,
                    "found": float(hit.mean()),
                    "share": float(hit.mean() / whole.mean()),
                    "hard_share": float((hit * hard).sum() / (whole * hard).sum()),
                }
            )
    return made


def k_centre(vectors: Any, budget: int) -> list[int]:
    """Select farthest first (Gonzalez, 1985): each next schema is the least similar to those selected."""
    import numpy as np

    picked, nearest = [0], vectors @ vectors[0]
    while len(picked) < budget:
        picked.append(int(nearest.argmin()))
        nearest = np.maximum(nearest, vectors @ vectors[picked[-1]])
    return picked


def k_medoids(vectors: Any, budget: int, rounds: int = 5) -> list[int]:
    """Select by alternating k-medoids from a random start (Park and Jun, 2009)."""
    import numpy as np

    centres = np.random.default_rng(0).choice(len(vectors), budget, replace=False)
    for _ in range(rounds):
        owner = (vectors @ vectors[centres].T).argmax(axis=1)
        for slot in range(budget):
            rows = np.flatnonzero(owner == slot)
            if len(rows):
                centres[slot] = rows[(vectors[rows] @ vectors[rows].sum(axis=0)).argmax()]
    return centres.tolist()


def child(arguments: Sequence[str]) -> Any:
    """Return the output of this script in a new process with one core."""
    environment = {**os.environ, **dict.fromkeys(THREADS, "1"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, __file__, *arguments], env=environment, check=False, capture_output=True, text=True
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {"skipped": lines[-1] if lines else f"exit {done.returncode}"}
    return json.loads(done.stdout)


def show(rows: Sequence[dict[str, Any]], selected: Sequence[dict[str, Any]]) -> None:
    if rows:
        head = ("add ms", "p50 ms", "p99 ms", "cpu p50", "cpu p99", "run ms", "MB", "same")
        print(f"{'vectoriser':11}{'schemata':>9}{'dims':>6}{'fit s':>7}" + "".join(f"{h:>9}" for h in head))
    for row in rows:
        if "skipped" in row:
            print(f"{row['vectoriser']:11}{row['schemata']:9}  not measured: {row['skipped'][:90]}")
            continue
        keys = ("add_ms", "p50_ms", "p99_ms", "cpu_p50_ms", "cpu_p99_ms", "run_ms", "grown_mb", "same")
        figures = "".join(f"{row[key]:9.3f}" if key != "grown_mb" else f"{row[key]:9.1f}" for key in keys)
        print(f"{row['vectoriser']:11}{row['schemata']:9}{row['dims']:6}{row['fit_s']:7.1f}{figures}")
        for name, peer in row["peers"].items():
            told = f"p50 {peer['p50_ms']:.3f} ms, ratio {peer['ratio']:.2f}, same {peer['same']:.3f}"
            print(f"{'':11}{name:>9}: {told}, built in {peer['build_s']:.1f} s")
    if selected:
        print(f"\n{'selected by':16}{'kept':>13}{'cpu s':>8}{'found':>8}{'share':>8}{'hard share':>12}")
    for row in selected:
        figures = f"{row['seconds']:8.2f}{row['found']:8.3f}{row['share']:8.3f}{row['hard_share']:12.3f}"
        print(f"{row['way']:16}{row['kept']:6} of {row['of']}{figures}")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description="Finding and selecting schemata.")
    parser.add_argument("--only", choices=("search", "select"))
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--vectorisers", nargs="+", default=["hashing", "tfidf_svd", "sentence", "endpoint"])
    parser.add_argument("--endpoint", nargs=2, metavar=("URL", "MODEL"), default=())
    parser.add_argument("--queries", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args(argv)
    if chosen.one:
        name, size = chosen.one
        one = (
            select_rows(int(size), (0.01, 0.1))
            if name == "select"
            else search_row(name, int(size), chosen.queries, chosen.repeats, chosen.endpoint)
        )
        print(json.dumps(one))
        return 0
    rows, selected = [], []
    more = ["--queries", str(chosen.queries), "--repeats", str(chosen.repeats)]
    if chosen.endpoint:
        more += ["--endpoint", *chosen.endpoint]
    for name in chosen.vectorisers if chosen.only != "select" else ():
        if name == "endpoint" and not chosen.endpoint:
            continue
        for size in (size for size in chosen.sizes if size <= SLOW.get(name, size)):
            print(f"{name}, {size:,} schemata ...", file=sys.stderr)
            made = child(["--one", name, str(size), *more])
            rows.append({"vectoriser": name, "schemata": size, **made})
    if chosen.only != "search":
        selected = child(["--one", "select", str(BAR_AT)])
    judged = [r for r in rows if r["vectoriser"] == "hashing" and r["schemata"] == BAR_AT and "same" in r]
    met = all(r["cpu_p99_ms"] <= BAR_MS and r["grown_mb"] <= BAR_MB for r in judged)
    if chosen.json:
        print(json.dumps({"search": rows, "select": selected, "met": met if judged else None}))
    else:
        show(rows, selected)
        if judged:
            print(f"bars at {BAR_AT:,} schemata ({BAR_MS} ms, {BAR_MB:.0f} MB):", "met" if met else "MISSED")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
