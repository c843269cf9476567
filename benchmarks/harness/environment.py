"""Where the packages of a peer live: an environment of its own, since their pins clash.

What a peer needs stands in the head of its script, as PEP 723 has it, with a table of ours:
`dependencies` pinned, and under `[tool.bench]` its name, its promise and its settings. Made when
it is first asked for, and again when the head names other versions.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

PEERS = Path(__file__).parents[1] / "peers"
ENVIRONMENTS = Path(__file__).parents[1] / ".environments"


def head(script: Path) -> dict[str, Any]:
    """What a script says of itself, in its first comment."""
    found = re.search(r"^(#|//) /// script\n(.*?)^\1 ///$", script.read_text(), re.M | re.S)
    if found is None:
        raise ValueError(f"expected a `/// script` block in {script}")
    lines = (line.removeprefix(found[1]).removeprefix(" ") for line in found[2].splitlines())
    return tomllib.loads("\n".join(lines))


def interpreter(script: Path, dependencies: list[str]) -> list[str]:
    """The command that runs a script, with its packages installed."""
    node = script.suffix == ".mjs"
    if not dependencies:
        return ["node" if node else sys.executable]
    folder = ENVIRONMENTS / script.stem.removeprefix("with_").replace("_", "-")
    ready = folder / "ready.json"
    if not ready.exists() or json.loads(ready.read_text()) != dependencies:
        print(f"installing {', '.join(dependencies)}", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        (_install_node if node else _install)(folder, dependencies)
        ready.write_text(json.dumps(dependencies))
    return ["node" if node else str(folder / "bin" / "python")]


def _install(folder: Path, dependencies: list[str]) -> None:
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "--disable-pip-version-check", *dependencies], check=True)


def _install_node(folder: Path, dependencies: list[str]) -> None:
    # Where Node looks: in a node_modules beside the script or above it.
    (folder / "package.json").write_text('{"private": true}')
    npm = ["npm", "install", "--silent", "--no-save", "--prefix", str(folder)]
    subprocess.run([*npm, *dependencies], check=True, stdout=subprocess.DEVNULL)
