"""Plans: the programs that tasks of Dask's graphs run. Executors load this module, so it imports no
part of the client, and not Dask either."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

#: One call of a plan: the function, the places of its arguments, the names and places of its
#: keyword arguments, and the places of the intermediate values that no later step reads.
Step: TypeAlias = "tuple[Callable[..., Any], tuple[int, ...], tuple[tuple[str, int], ...], tuple[int, ...]]"


class _Reading(threading.local):
    #: Inputs of the task whose constants this thread unpickles.
    inputs: tuple[Any, ...] = ()


_reading = _Reading()


class Plan:
    """Calls that tasks of one layer of a graph have in common.

    A task gives the plan its own constants and its inputs. All values of a run lie in one list, and
    steps refer to them by place: first the inputs, then the task's constants, then the plan's
    constants, then the result of each step. The result of the last step is the task's result.

    Args:
        steps: the calls, in their order.
        shared: constants that are the same for all tasks of the plan.
        result: the place of the result.
    """

    __slots__ = ("result", "shared", "steps")

    #: Executors may give the same decoded input to several tasks of plans: Dask's tasks do not
    #: write to their inputs.
    shares_inputs = True

    def __init__(self, steps: tuple[Step, ...], shared: tuple[Any, ...], result: int) -> None:
        self.steps, self.shared, self.result = steps, shared, result

    def __call__(self, own: bytes, /, *given: Any, wanted: bool = False) -> Any:
        """Runs the plan.

        Args:
            own: a pickle of the task's constants; empty if it has none.
            given: the inputs.
            wanted: see `remade`.
        """
        inputs = tuple([x.value() if type(x) is Remade else x for x in given])
        values: list[Any] = list(inputs)
        if own:
            _reading.inputs = inputs
            try:
                values += pickle.loads(own)
            finally:
                _reading.inputs = ()
        values += self.shared
        for function, places, named, unused in self.steps:
            arguments = [values[p] for p in places]
            if named:
                values.append(function(*arguments, **{name: values[p] for name, p in named}))
            else:
                values.append(function(*arguments))
            del arguments
            for p in unused:
                values[p] = None
        return values[self.result]

    def remade(self, own: bytes, /, *given: Any, wanted: bool = False) -> Remade | None:
        """Returns what the task returns in place of a result that cannot be pickled: an iterator, a
        lock, a socket. None if the result is `wanted` by the client; otherwise only tasks of the
        same graph read it."""
        return None if wanted else Remade(self, own, given)

    def __reduce__(self) -> Any:
        return Plan, (self.steps, self.shared, self.result)


class Remade:
    """The call of a plan, in place of its result: each task that reads it makes the result for
    itself."""

    __slots__ = ("given", "own", "plan")

    def __init__(self, plan: Plan, own: bytes, given: tuple[Any, ...]) -> None:
        self.plan, self.own, self.given = plan, own, given

    def value(self) -> Any:
        return self.plan(self.own, *self.given)

    def __reduce__(self) -> Any:
        return Remade, (self.plan, self.own, self.given)


def input_at(index: int) -> Any:
    """Returns an input of the task whose constants are being unpickled: futures inside of constants
    are pickled as calls of this function."""
    return _reading.inputs[index]


def make_list(*items: Any) -> list[Any]:
    return list(items)


def make_tuple(*items: Any) -> tuple[Any, ...]:
    return items


def make_set(*items: Any) -> set[Any]:
    return set(items)


def make_dict(*items: Any) -> dict[Any, Any]:
    """Makes a dict of alternating keys and values."""
    return dict(zip(items[::2], items[1::2], strict=True))


def identity(value: Any) -> Any:
    return value


def call_method(obj: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
    return getattr(obj, name)(*args, **kwargs)


def of_items(
    numbers: tuple[int | None, ...], counts: tuple[int, ...], function: Callable[..., Any], *lists: Any
) -> Any:
    """Calls a function with one item of each list, or with the value itself where the number is None.

    A node of a graph that calls it needs only these items as inputs of its task, if the lists are
    results of other tasks. `counts`: the lengths of the lists.
    """
    del counts
    return function(*(items if n is None else items[n] for items, n in zip(lists, numbers, strict=True)))


def run_node(node: Any, names: tuple[Any, ...], /, *values: Any) -> Any:
    """Runs a node of a class that plans do not know, with its dependencies by name."""
    return node(dict(zip(names, values, strict=True)))
