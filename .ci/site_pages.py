"""Decide which pages the site has besides those of docs/: the README, and one per public module.

mkdocs calls the functions below by their names (`hooks` in mkdocs.yml).
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]

# Page of the reference: the modules below `tianyuan` whose public names it shows.
REFERENCE = {
    "tianyuan": ["", "serialization", "checkpoint", "config", "errors"],
    "functional": [
        "functional",
        "functional.debug_param",
        "functional.distributed",
        "functional.loss",
        "functional.metric",
        "functional.nn",
        "functional.quantized",
        "functional.vision",
    ],
    "module": ["module", "module.init"],
    "optimizer": ["optimizer"],
    "autodiff": ["autodiff"],
    "jit": ["jit"],
    "data": [
        "data",
        "data.dataset",
        "data.transform",
        "data.transform.vision.functional",
    ],
    "random": ["random"],
    "amp": ["amp"],
    "distributed": [
        "distributed",
        "distributed.group",
        "distributed.helper",
        "distributed.server",
    ],
    "distributions": ["distributions"],
    "traced_module": [
        "traced_module",
        "traced_module.expr",
        "traced_module.fake_quant",
        "traced_module.node",
        "traced_module.pytree",
        "traced_module.serialization",
        "traced_module.traced_module",
    ],
    "quantization": ["quantization", "module.qat", "module.quantized"],
    "onnx": ["onnx"],
    "torch": ["torch"],
    "hub": ["hub"],
    "utils": [
        "utils",
        "utils.bn_fusion",
        "utils.comp_graph_tools",
        "utils.custom_op_tools",
        "utils.deprecation",
        "utils.dlpack",
        "utils.future",
        "utils.hook",
        "utils.max_recursion_limit",
        "utils.module_stats",
        "utils.module_utils",
        "utils.naming",
        "utils.network",
        "utils.network_node",
        "utils.persistent_cache",
        "utils.profile_analyzer",
        "utils.profiler",
        "utils.tensor_sanity_check",
        "utils.tensorboard",
        "tools.network_visualize",
    ],
    "device": ["device", "dtr", "logger"],
    "plugin": ["plugin", "testing.examples"],
}

# Where names lead that a plugin brings.
BROUGHT = {
    "tianyuan.module.qat": "tianyuan_quant.qat",
    "tianyuan.module.quantized": "tianyuan_quant.quantized",
}
# What static reading of a module misses, as it takes a module of the same name for it.
HIDDEN = {
    "tianyuan.amp": ["amp.autocast.autocast"],
    "tianyuan.distributed": ["distributed.launcher.launcher"],
    "tianyuan.functional": ["functional.einsum.einsum", "functional.math.norm"],
    "tianyuan.jit": ["jit.trace.trace"],
}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie elsewhere or are made."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=readme))
    benchmarks = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    benchmarks = benchmarks.replace("](../docs/", "](")
    files.append(File.generated(config, "benchmarks.md", content=benchmarks))
    for page, modules in REFERENCE.items():
        content = f"# {page}\n" + "".join(map(_section, modules))
        files.append(File.generated(config, f"api/{page}.md", content=content))
    return files


def _section(module: str) -> str:
    """Return the heading of a module and what mkdocstrings makes its names of."""
    name = f"tianyuan.{module}".rstrip(".")
    lines = [f"\n## `{name}`\n"]
    if name == "tianyuan.quantization":
        for part, names in _lazy_names().items():
            lines.append(f"::: tianyuan_quant.{part}\n    options:\n      members: {list(names)}\n")
    else:
        lines.append(f"::: {BROUGHT.get(name, name)}\n")
    for hidden in HIDDEN.get(name, ()):
        lines.append(f"::: tianyuan.{hidden}\n    options:\n      show_root_heading: true\n")
    return "\n".join(lines)


def _lazy_names() -> dict[str, tuple[str, ...]]:
    """Return the public names of tianyuan_quant by module, which it loads on first use."""
    source = ROOT / "packages" / "tianyuan-quant" / "src" / "tianyuan_quant" / "__init__.py"
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_PUBLIC":
            found: dict[str, tuple[str, ...]] = ast.literal_eval(node.value)
            return found
    raise LookupError(f"{source}: has no table _PUBLIC")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links to files that lie elsewhere lead to their pages."""
    return markdown.replace("](../benchmarks/README.md", "](benchmarks.md")
