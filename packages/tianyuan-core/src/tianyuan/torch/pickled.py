"""Decide which pickles are read: a stack machine of our own that calls nothing a file names.

Python's unpickler calls what the file asks for, and allocates what the file says. This machine
lexes with ``pickletools``, keeps plain containers, and hands every name to a table of rebuilders;
a name that the table lacks is refused.
"""

from __future__ import annotations

import pickletools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ..errors import ModelFormatError


class Stream(Protocol):
    """What is read from; ``read(n)`` must not allocate more than there is."""

    def read(self, size: int, /) -> bytes: ...
    def readline(self) -> bytes: ...
    def tell(self) -> int: ...


class Global:
    """A name that a pickle mentions, and what stands for calls of it.

    Attributes:
        title: ``module.name`` as the file says it.
        value: what the name stands for as a value, such as a dtype; None for a function.
        call: makes a value from the arguments of a call; None where it cannot be called.
    """

    __slots__ = ("call", "title", "value")

    def __init__(
        self, title: str, value: Any = None, call: Callable[..., Any] | None = None
    ) -> None:
        self.title = title
        self.value = value
        self.call = call


class Stateful(Protocol):
    """A value under construction that a pickle's BUILD completes."""

    def set_state(self, state: Any) -> None: ...


class _Mark:
    """The one value that marks a place on the stack."""


_MARK = _Mark()
_DAMAGE = (
    ValueError, EOFError, IndexError, KeyError, TypeError, AttributeError, OverflowError,
    MemoryError, RecursionError,
)  # fmt: skip


def read_pickle(
    stream: Stream,
    title: str,
    names: Callable[[str], Global | None],
    persistent: Callable[[Any], Any] | None = None,
) -> Any:
    """Read one pickle from where a stream stands, and leave the stream behind it.

    Args:
        stream: what to read.
        title: what the file is called in messages.
        names: gives what stands for ``module.name``, None where it is not allowed.
        persistent: gives what stands for a persistent id; None where none is expected.

    Raises:
        ModelFormatError: where the pickle is damaged, or names anything that is not allowed.
            Nothing that it names has been imported or called.
    """
    machine = _Machine(title, names, persistent)
    try:
        for opcode, argument, _ in pickletools.genops(stream):  # type: ignore[arg-type]
            machine.step(opcode.name, argument)
        return machine.result()
    except ModelFormatError:
        raise
    except _DAMAGE as error:
        reason = str(error) or type(error).__name__
        raise ModelFormatError(
            f"{title}: the pickle is damaged near byte {stream.tell()}, got {reason[:120]}"
        ) from None


class _Machine:
    def __init__(
        self,
        title: str,
        names: Callable[[str], Global | None],
        persistent: Callable[[Any], Any] | None,
    ) -> None:
        self._title = title
        self._names = names
        self._persistent = persistent
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        """Perform one opcode."""
        if name in _PUSHED:
            self._stack.append(argument)
        elif name in _MADE:
            self._stack.append(_MADE[name]())
        elif name in _STEPS:
            _STEPS[name](self, argument)
        else:
            raise self._refuse(f"the pickle instruction {name}")

    def result(self) -> Any:
        """Return what the pickle made."""
        if len(self._stack) != 1:
            raise ValueError(f"{len(self._stack)} values at the end, expected 1")
        return self._stack[0]

    def _refuse(self, what: str) -> ModelFormatError:
        return ModelFormatError(
            f"{self._title}: refused without executing anything, got {what}, expected tensors and "
            "arrays in dict, OrderedDict, list and tuple, text, numbers, bools and None"
        )

    def _pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise ValueError("a mark where a value should be")
        return value

    def _since_mark(self) -> list[Any]:
        position = len(self._stack) - 1
        while self._stack[position] is not _MARK:
            if position == 0:
                raise ValueError("no mark on the stack")
            position -= 1
        items = self._stack[position + 1 :]
        del self._stack[position:]
        return items

    def _pop_any(self, _: Any) -> None:
        self._stack.pop()

    def _pop_mark(self, _: Any) -> None:
        self._since_mark()

    def _duplicate(self, _: Any) -> None:
        self._stack.append(self._stack[-1])

    def _mark(self, _: Any) -> None:
        self._stack.append(_MARK)

    def _list(self, _: Any) -> None:
        self._stack.append(self._since_mark())

    def _tuple(self, _: Any) -> None:
        self._stack.append(tuple(self._since_mark()))

    def _short_tuple(self, count: int) -> None:
        items = [self._pop() for _ in range(count)]
        self._stack.append(tuple(reversed(items)))

    def _dict(self, _: Any) -> None:
        items = self._since_mark()
        self._stack.append({})
        self._put_items(items)

    def _append(self, _: Any) -> None:
        item = self._pop()
        self._target(list).append(item)

    def _appends(self, _: Any) -> None:
        items = self._since_mark()
        self._target(list).extend(items)

    def _set_item(self, _: Any) -> None:
        value, key = self._pop(), self._pop()
        self._put_items([key, value])

    def _set_items(self, _: Any) -> None:
        self._put_items(self._since_mark())

    def _put_items(self, items: list[Any]) -> None:
        target = self._target(dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            if key is not None and not isinstance(key, (str, int, float, bool)):
                raise self._refuse(f"a dict's key of type {type(key).__name__}")
            target[key] = value

    def _target(self, kind: type) -> Any:
        target = self._stack[-1]
        if not isinstance(target, kind):
            raise ValueError(f"{type(target).__name__} where a {kind.__name__} should be")
        return target

    def _memoise(self, _: Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _put(self, number: int) -> None:
        self._memo[number] = self._stack[-1]

    def _get(self, number: int) -> None:
        self._stack.append(self._memo[number])

    def _global(self, argument: str) -> None:
        self._push_global(argument.replace(" ", "."))

    def _stack_global(self, _: Any) -> None:
        name, module = self._pop(), self._pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise ValueError("a name that is no text")
        self._push_global(f"{module}.{name}")

    def _push_global(self, title: str) -> None:
        found = self._names(title)
        if found is None:
            raise self._refuse(f"{title[:100]!r} named in its pickle")
        self._stack.append(found)

    def _reduce(self, _: Any) -> None:
        arguments, function = self._pop(), self._pop()
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            raise ValueError("a call of what is no function")
        if function.call is None:
            raise self._refuse(f"a call of {function.title!r}")
        self._stack.append(function.call(*arguments))

    def _build(self, _: Any) -> None:
        given, target = self._pop(), self._stack[-1]
        if isinstance(target, OrderedDict):
            return  # a torch state dict's versions of its modules
        if not hasattr(target, "set_state"):
            raise self._refuse(f"a state for a {type(target).__name__}")
        target.set_state(given)

    def _persistent_id(self, argument: Any) -> None:
        self._push_persistent(argument)

    def _popped_persistent_id(self, _: Any) -> None:
        self._push_persistent(self._pop())

    def _push_persistent(self, pid: Any) -> None:
        if self._persistent is None:
            raise self._refuse("a persistent id in a pickle without storages")
        self._stack.append(self._persistent(pid))

    def _nothing(self, _: Any) -> None:
        """PROTO and FRAME say how the pickle is written; STOP ends the lexing."""


_PUSHED = frozenset(
    {
        "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
        "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE",
        "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
    }
)  # fmt: skip
_MADE: Mapping[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
}
_STEPS: Mapping[str, Callable[[_Machine, Any], None]] = {
    "PROTO": _Machine._nothing,
    "FRAME": _Machine._nothing,
    "STOP": _Machine._nothing,
    "MARK": _Machine._mark,
    "POP": _Machine._pop_any,
    "POP_MARK": _Machine._pop_mark,
    "DUP": _Machine._duplicate,
    "LIST": _Machine._list,
    "TUPLE": _Machine._tuple,
    "TUPLE1": lambda machine, _: machine._short_tuple(1),
    "TUPLE2": lambda machine, _: machine._short_tuple(2),
    "TUPLE3": lambda machine, _: machine._short_tuple(3),
    "DICT": _Machine._dict,
    "APPEND": _Machine._append,
    "APPENDS": _Machine._appends,
    "SETITEM": _Machine._set_item,
    "SETITEMS": _Machine._set_items,
    "MEMOIZE": _Machine._memoise,
    "PUT": _Machine._put,
    "BINPUT": _Machine._put,
    "LONG_BINPUT": _Machine._put,
    "GET": _Machine._get,
    "BINGET": _Machine._get,
    "LONG_BINGET": _Machine._get,
    "GLOBAL": _Machine._global,
    "STACK_GLOBAL": _Machine._stack_global,
    "REDUCE": _Machine._reduce,
    "BUILD": _Machine._build,
    "PERSID": _Machine._persistent_id,
    "BINPERSID": _Machine._popped_persistent_id,
}
