"""The vocabulary of hidden checks: an independent reference, random inputs, and mistakes known by what they give.

A check never says what the right answer is. It says what is wrong with this one: in a sentence written for that mistake
where the answer agrees with what the mistake gives, else in general terms.
"""

import inspect
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch


class Wrong(AssertionError):
    """A refused answer. `mistake`: its name in the class overview."""

    def __init__(self, sentence: str, mistake: str = ""):
        super().__init__(sentence)
        self.mistake = mistake


@dataclass(frozen=True)
class Mistake:
    """A class of wrong answers: what it gives, and what to tell whoever gave it.

    gives: for functions, called with the same arguments as the answer; for values, with the instance.
    """

    name: str
    sentence: str
    gives: Callable


@dataclass(frozen=True)
class Check:
    """One check of one answer.

    reference: what a right answer gives: a function of the inputs, or, where `inputs` is None, of the instance.
    inputs: (torch.Generator, instance) -> keyword arguments, with sizes that differ from axis to axis.
    mistakes: tried in order.
    forbidden: names of ddcl_lite that the answer may not call.
    tolerance: relative for numbers, and relative to the largest entry for tensors.
    """

    reference: Callable
    inputs: Callable | None = None
    mistakes: Sequence[Mistake] = ()
    forbidden: Sequence[str] = ()
    tolerance: float = 1e-4
    trials: int = 3

    def __call__(self, answer, instance: dict, seed: int, wanted=None) -> None:
        """Return, or raise `Wrong`. wanted: what the reference gives for the instance, where that is known already."""
        if self.inputs is None:
            trials, given = [{"instance": instance}], [answer]
        else:
            if not callable(answer):
                raise Wrong(f"a {type(answer).__name__} stands where a function is wanted", "no function")
            trials = [self.inputs(torch.Generator().manual_seed(seed + i), instance) for i in range(self.trials)]
            with forbidding(self.forbidden):
                given = [_call(answer, one) for one in trials]
        wanted = [self.reference(**_copy(one)) for one in trials] if wanted is None else [wanted]
        problems = [_differs(g, w, self.tolerance) for g, w in zip(given, wanted)]
        if not any(problems):
            return
        for mistake in self.mistakes:
            theirs = [_quietly(mistake.gives, **_copy(one)) for one in trials]
            if all(t is not None and _alike(g, t, self.tolerance) for g, t in zip(given, theirs)):
                raise Wrong(mistake.sentence, mistake.name)
        if len(given) > 1 and not any(_differs(given[0], other, 0) for other in given[1:]):
            raise Wrong("The answer is the same whatever goes in: an example, typed in?", "constant")
        raise Wrong(next(filter(None, problems)), "")


def _call(answer: Callable, inputs: dict):
    """What the answer gives; Wrong where it changes what it was given."""
    copy = _copy(inputs)
    given = answer(**copy)
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor) and not _same(value, copy[name]):
            raise Wrong(f"The function changes its argument {name}. Work on a copy.", "changes its input")
    return given


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors agree, NaN in the same places included."""
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())


def _copy(inputs: dict) -> dict:
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}


def _quietly(function: Callable, **inputs):
    """What a mistake gives; None where it cannot be made with these inputs."""
    try:
        return function(**inputs)
    except Exception:
        return None


def _alike(given, theirs, tolerance: float) -> bool:
    """Whether an answer is what a mistake gives, NaN in the same places included."""
    if isinstance(theirs, float) and math.isnan(theirs):
        number = _number(given)
        return number is not None and math.isnan(number)
    if type(given) is torch.Tensor and isinstance(theirs, torch.Tensor) and given.shape == theirs.shape:
        if not torch.equal(given.isnan(), theirs.isnan()):
            return False
        given, theirs = given.detach().nan_to_num(), theirs.nan_to_num()
    return not _differs(given, theirs, tolerance)


def _differs(given, wanted, tolerance: float) -> str:
    """What is wrong with `given`, in general terms; empty if nothing is. Types are exact: nothing poses as another."""
    if isinstance(wanted, torch.Tensor):
        if type(given) not in (torch.Tensor, torch.nn.Parameter):
            return f"The answer is a {type(given).__name__}, not a tensor."
        if given.shape != wanted.shape:
            return f"The answer has shape {tuple(given.shape)}: read again which axes it should have."
        if given.is_complex() or (given.dtype == torch.bool) != (wanted.dtype == torch.bool):
            return f"The answer has the type {given.dtype}: read again what its entries should be."
        given, wanted = given.detach().cpu().double(), wanted.detach().double()
        if not torch.isfinite(given).all():
            return "The answer has NaN or infinite entries."
        close = (given - wanted).abs().max() <= tolerance * wanted.abs().max() if wanted.numel() else True
        return "" if close else "The shape is right and the numbers are not."
    if isinstance(wanted, dict | list | tuple):
        if type(given) is not type(wanted) or len(given) != len(wanted):
            return f"The answer is a {type(given).__name__}: read again what it should hold, and how many."
        if isinstance(wanted, dict):
            if any(name not in given for name in wanted):
                return "The answer has other keys than those asked for."
            given, wanted = [given[name] for name in wanted], list(wanted.values())
        wrong = sum(bool(_differs(g, w, tolerance)) for g, w in zip(given, wanted))
        return f"{wrong} of {len(wanted)} entries are not right." if wrong else ""
    if isinstance(wanted, str):
        if type(given) is not str:
            return f"The answer is a {type(given).__name__}: a text is wanted."
        return "" if given.strip().lower() == wanted.lower() else "The answer is not the right one."
    if isinstance(wanted, bool):
        return "" if type(given) is bool and given == wanted else "The answer is not the right one."
    number = _number(given)
    if number is None:
        return f"The answer is a {type(given).__name__}: one number is wanted."
    if not math.isfinite(number):
        return "The answer is not a finite number."
    close = abs(number - wanted) <= tolerance * abs(wanted) if wanted else abs(number) <= tolerance
    return "" if close else "The number is not right."


def _number(given) -> float | None:
    if type(given) in (int, float) or isinstance(given, np.integer | np.floating):
        return float(given)
    if type(given) is torch.Tensor and given.numel() == 1 and not given.is_complex() and given.dtype != torch.bool:
        return given.item()
    return None


# ---------------------------------------------------------------- what an answer may not call


@contextmanager
def forbidding(names):
    """Names of ddcl_lite that may not be called inside, whatever the caller calls them: Wrong if they are."""
    codes, caught = {code: name for name in sorted(names) for code in _codes(name)}, []

    def watch(frame, event, argument):
        if event == "call" and frame.f_code in codes:
            name = codes[frame.f_code]
            caught.append(Wrong(f"Write this without ddcl_lite's {name}: it is what you are asked for.", "called"))
            raise caught[0]

    before = sys.getprofile()
    sys.setprofile(watch if codes else before)
    try:
        yield
    finally:
        sys.setprofile(before)
    if caught:  # and the caller went on
        raise caught[0]


def _codes(name: str):
    """The code behind a name of ddcl_lite, wherever in the library it is."""
    for module in [module for path, module in sys.modules.items() if path.split(".")[0] == "ddcl_lite"]:
        found = inspect.unwrap(vars(module).get(name))
        if isinstance(found, type):
            found = found.__init__  # inherited, too
        if inspect.isfunction(found) and found.__module__.split(".")[0] == "ddcl_lite":
            yield found.__code__
