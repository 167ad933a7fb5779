"""Imports go down the layers only, and each rule of the house that can be read off the source."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "fairseq_rum"

# A module may import from its own layer and from those before it.
LAYERS = [
    {"functional", "errors", "compat"},
    {"cells", "kernels"},
    {"layers", "modules"},
    {"config", "data"},
    {"models", "tasks", "criterions", "optim", "scoring"},
    {"cli", "viz"},
]
TORCH_ONLY = {"functional", "errors", "cells", "kernels", "layers", "modules"}


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE)
        if relative.parts[0] != "__init__.py":
            yield path, relative.parts[0].removesuffix(".py")


def imports(path):
    """Dotted names of all imports, those inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer(name):
    (found,) = [index for index, names in enumerate(LAYERS) if name in names]
    return found


def test_imports_go_down():
    for path, name in modules():
        for imported in imports(path):
            parts = imported.split(".")
            if parts[0] == "fairseq_rum" and len(parts) > 1 and parts[1] != "__version__":
                assert layer(parts[1]) <= layer(name), f"{path} imports {imported}"


def test_the_lower_layers_know_torch_only():
    for path, name in modules():
        if name in TORCH_ONLY:
            for imported in imports(path):
                root = imported.split(".")[0]
                assert root not in ("fairseq", "fairseq_cli", "omegaconf", "hydra"), path


def test_nothing_runs_what_a_file_says():
    """No pickle.load, eval, exec or unsafe yaml in the package; torch.load with weights only."""
    for path, _ in modules():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                assert name not in ("eval", "exec", "pickle.load", "pickle.loads", "yaml.load"), (
                    path
                )
                if name == "torch.load":
                    keywords = {k.arg: ast.unparse(k.value) for k in node.keywords}
                    assert keywords.get("weights_only") == "True", path
