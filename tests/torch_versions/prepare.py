"""A virtual environment with another release of PyTorch, for the CPU, without the gigabytes of CUDA libraries.

    python tests/torch_versions/prepare.py 2.6.0 build/torch-2.6.0

PyPI's wheels of torch for Linux are built for CUDA: `import torch` loads a dozen libraries that come in packages of
their own and are larger than torch itself, also on a machine without a GPU. The wheel is installed without them. In
their place come libraries of the same names and symbol versions in which every function returns 100, which is
cudaErrorNoDevice: torch finds no GPU and works on the CPU. Nothing of torch itself is changed: what is tested is that
release's own code. It takes about a minute and 0.8 GB to download.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# What torch needs besides CUDA, what an editable install needs, and what the tests need.
PACKAGES = (
    "typing-extensions>=4.10", "sympy>=1.13.1", "networkx", "jinja2", "fsspec", "filelock", "numpy", "setuptools",
    "scikit-build-core>=0.10", "nanobind>=2.4", "pytest>=8", "pytest-timeout>=2.3", "pytest-xdist>=3.7",
    "hypothesis>=6.100", "psutil>=5.9", "ml-dtypes>=0.4", "expecttest>=0.2",
)  # fmt: skip

CUDA = re.compile(
    r"(__cuda|cuda|cu[A-Z]|cublas|cudnn|cufft|cufile|cupti|curand|cusolver|cusparse|nccl|nvrtc|nvshmem|nvtx|nvJitLink)"
)


def said(*command: str | Path) -> str:
    """What a command prints."""
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True, timeout=120).stdout


def needed(library: Path) -> list[str]:
    """The names of the libraries that a library loads."""
    return re.findall(r"\(NEEDED\).*\[(.*)\]", said("readelf", "-d", library))


def loaded(roots: Iterable[Path], folder: Path) -> tuple[list[Path], list[str]]:
    """What `roots` load, directly or not: files of `folder`, and names that are neither there nor in the system."""
    known = said("ldconfig", "-p")
    found: dict[str, Path] = {}
    missing: list[str] = []
    left = list(roots)
    while left:
        library = left.pop()
        for name in needed(library):
            if name in found or name in missing:
                continue
            if (folder / name).exists():
                found[name] = folder / name
                left.append(folder / name)
            elif f"\t{name} " not in known:
                missing.append(name)
    return [*roots, *found.values()], missing


def stand_in(path: Path, symbols: dict[str, set[str]]) -> None:
    """Build a library of functions that return 100. `symbols`: version ("" for none) -> names."""
    names = sorted(set().union(*symbols.values()))
    text = [".text"]
    for name in names:
        text += [f".globl {name}", f".type {name}, @function", f"{name}:"]
    text += ["    movl $100, %eax", "    ret", '.section .note.GNU-stack,"",@progbits', ""]
    versions = [
        f"{version} {{ global: {' '.join(f'{n};' for n in sorted(s))} }};" for version, s in symbols.items() if version
    ]
    source, script = path.with_suffix(".s"), path.with_suffix(".map")
    source.write_text("\n".join(text))
    script.write_text("\n".join(versions) + "\n")
    command = ["gcc", "-shared", "-nostdlib", "-o", path, source, f"-Wl,-soname,{path.name}"]
    said(*command, *([f"-Wl,--version-script={script}"] if versions else []))
    source.unlink()
    script.unlink()


def stand_ins(torch: Path) -> list[str]:
    """Make all libraries that torch would load and that are not there; their names."""
    folder = torch / "lib"
    libraries, missing = loaded([*torch.glob("_C.*.so"), folder / "libtorch_global_deps.so"], folder)
    wanted: dict[str, dict[str, set[str]]] = {name: defaultdict(set) for name in missing}
    unversioned = set()
    for line in said("nm", "-D", "--undefined-only", *libraries).splitlines():
        name, _, version = line.split()[-1].partition("@") if line.startswith(" ") else ("", "", "")
        # CUDA's symbols bear the name of their library as their version, or at least a part of it (NVSHMEM).
        library = next((each for each in wanted if each == version or (version and version.lower() in each)), None)
        if library is not None:
            wanted[library][version].add(name)
        elif not version and CUDA.match(name):
            unversioned.add(name)
    for symbols in wanted.values():
        if not symbols:
            symbols[""] |= unversioned  # those without versions may come from any library
    for name, symbols in wanted.items():
        stand_in(folder / name, symbols or {"": set()})
    return missing


def prepare(version: str, place: Path) -> None:
    """Make the environment; raises CalledProcessError where something cannot be installed."""
    python = place / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", place], check=True, timeout=120)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *PACKAGES], check=True, timeout=600)
    subprocess.run([*pip, "--no-deps", "--no-cache-dir", f"torch=={version}"], check=True, timeout=600)
    editable = ["--no-deps", "--no-build-isolation", "--config-settings=wheel.cmake=false", "-e", ROOT]
    subprocess.run([*pip, *editable], check=True, timeout=300)
    [site] = place.glob("lib/python*/site-packages")
    names = stand_ins(site / "torch")
    check = "import torch; print(torch.__version__, torch.cuda.is_available(), torch.ones(2).sum().item())"
    print(f"torch {version}: {len(names)} stand-ins;", said(python, "-c", check).strip())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="a release of torch, as 2.6.0")
    parser.add_argument("place", type=Path, help="the folder of the environment")
    arguments = parser.parse_args()
    prepare(arguments.version, arguments.place.resolve())
