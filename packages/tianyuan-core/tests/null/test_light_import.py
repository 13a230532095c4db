"""Importing Tianyuan brings plugins in and leaves all else for its first use."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PLUGIN = """
from tianyuan.op import Op
from tianyuan.plugins import PluginRecord, load
class Plugin:
    __spec__ = None
    TIANYUAN_API = (1, 0)
    @staticmethod
    @hookimpl
    def tianyuan_ops():
        return [Op("exp", infer=lambda specs, attrs: specs)]
record = PluginRecord("late", "late-dist", "1")
"""


def run(code: str, **environment: str) -> list[str]:
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_what_a_deployed_model_may_not_need_is_not_imported() -> None:
    waiting = (
        "dataclasses", "pathlib", "traceback", "ml_dtypes", "importlib.metadata", "tianyuan.graph",
        "tianyuan.functional", "tianyuan.module", "tianyuan.autodiff", "tianyuan.ops.conv",
        "tianyuan.backends.numpy.conv",
    )  # fmt: skip
    code = (
        "import sys, numpy; before = set(sys.modules); import tianyuan\n"
        f"print(*(set({waiting}) & (set(sys.modules) - before)), 'pluggy' in sys.modules)"
    )
    assert run(code) == ["True"]


def test_an_op_is_there_when_it_is_looked_up() -> None:
    code = (
        "import sys, tianyuan.registry as r; print('tianyuan.ops.conv' in sys.modules)\n"
        "print(r.get_op('conv2d').name, 'exp' in {op.name for op in r.all_ops()})\n"
        "try:\n    r.get_op('nothing')\nexcept KeyError:\n    print('unknown')"
    )
    assert run(code) == ["False", "conv2d", "True", "unknown"]


def test_a_plugin_cannot_take_the_name_of_an_op_that_waits() -> None:
    code = (
        "import tianyuan; from tianyuan.plugin import hookimpl\n"
        f"{PLUGIN}"
        "load(record, lambda: Plugin)\n"
        "print(record.state, 'two ops have one name' in record.reason)\n"
        "print(tianyuan.registry.get_op('exp').reference is not None)"
    )
    assert run(code) == ["quarantined", "True", "True"]


@pytest.mark.parametrize("collecting", [True, False])
def test_the_collector_runs_as_before(collecting: bool) -> None:
    code = (
        f"import gc; gc.enable() if {collecting} else gc.disable()\n"
        "import tianyuan; print(gc.isenabled())"
    )
    assert run(code) == [str(collecting)]


def test_a_child_that_is_forked_while_another_thread_loads_collects() -> None:
    code = (
        "import gc, os, threading, tianyuan\n"
        "from tianyuan.collecting import uncollected\n"
        "inside, leave = threading.Event(), threading.Event()\n"
        "def load():\n"
        "    with uncollected():\n"
        "        inside.set(); leave.wait()\n"
        "thread = threading.Thread(target=load); thread.start(); inside.wait()\n"
        "child = os.fork()\n"
        "if not child: os._exit(not gc.isenabled())\n"
        "print(os.waitpid(child, 0)[1], gc.isenabled())\n"
        "leave.set(); thread.join(); print(gc.isenabled()); gc.disable()\n"
        "child = os.fork()\n"
        "if not child: os._exit(gc.isenabled())\n"
        "print(os.waitpid(child, 0)[1])"
    )
    assert run(code) == ["0", "False", "True", "0"]


def test_what_was_there_before_is_still_collected_and_what_was_frozen_stays_so() -> None:
    code = (
        "import gc, weakref; frozen = gc.get_freeze_count()\n"
        "class Ring: pass\n"
        "ring = Ring(); ring.self = ring; gone = weakref.ref(ring); del ring\n"
        "import tianyuan; gc.collect(); print(gone() is None, gc.get_freeze_count() - frozen)"
    )
    assert run(code) == ["True", "0"]
    frozen = "import gc; gc.freeze(); n = gc.get_freeze_count(); import tianyuan\n"
    assert run(frozen + "print(n > 0, gc.get_freeze_count() > 0)") == ["True", "True"]


def test_the_collector_runs_again_where_the_import_fails() -> None:
    code = (
        "import gc\n"
        "try:\n    import tianyuan\n"
        "except Exception as error:\n    print(type(error).__name__, gc.isenabled())"
    )
    assert run(code, TIANYUAN_ISA="none") == ["BackendError", "True"]


def test_the_table_of_ops_names_what_each_family_declares() -> None:
    from importlib import import_module

    from tianyuan import ops, registry

    declared = {
        family: [op.name for op in import_module(f"{ops.__name__}.{family}").OPS]
        for family in ops.FAMILIES
    }
    assert {family: names.split() for family, names in ops.FAMILIES.items()} == declared
    own = [name for names in declared.values() for name in names]
    assert [op.name for op in registry.all_ops()][: len(own)] == own
    assert [op.name for op in ops.register_all()] == own


def test_looking_an_op_up_declares_no_other_family() -> None:
    code = (
        "import sys, pickle, tianyuan.registry as r\n"
        "def there(name): return f'tianyuan.ops.{name}' in sys.modules\n"
        "print(r.has_op('sort'), r.has_op('nothing'), there('sorting'))\n"
        "r.candidates('conv2d'); print(there('conv'), there('sorting'), there('norm'))\n"
        "from tianyuan.ops.sorting import SORT\n"
        "print(pickle.loads(pickle.dumps(SORT)) is SORT, r.get_op('sort') is SORT)"
    )
    assert run(code) == ["True", "False", "False", "True", "False", "False", "True", "True"]
