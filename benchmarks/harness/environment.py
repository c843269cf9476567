"""An environment for each peer, because the versions that peers need exclude each other.

The first comment of a peer's script is PEP 723 metadata: pinned `dependencies`, and in a table of
ours, `[tool.bench]`, its name, its delivery promise and its settings. The environment is made when
the peer is first measured, and again when its script names other versions.
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


def script_metadata(script: Path) -> dict[str, Any]:
    """The PEP 723 metadata of a script."""
    found = re.search(r"^(#|//) /// script\n(.*?)^\1 ///$", script.read_text(), re.M | re.S)
    if found is None:
        raise ValueError(f"expected a `/// script` block in {script}")
    lines = (line.removeprefix(found[1]).removeprefix(" ") for line in found[2].splitlines())
    return tomllib.loads("\n".join(lines))


def interpreter(script: Path, dependencies: list[str]) -> list[str]:
    """The command that runs a script. Installs the packages first where they are missing."""
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
    # Node searches for packages in a node_modules beside the script or above it.
    (folder / "package.json").write_text('{"private": true}')
    npm = ["npm", "install", "--silent", "--no-save", "--prefix", str(folder)]
    subprocess.run([*npm, *dependencies], check=True, stdout=subprocess.DEVNULL)
