"""A case: what is run against what, at which quality, for whom, with which typed parameters."""

from __future__ import annotations

import keyword
import re
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from mpcore.errors import quoted
from mpcore.records.base import Record, RecordError
from mpcore.records.lock import Protocol
from mpcore.records.policy import PolicySheet

SENSIBLE = 10**15
"""No numeric parameter goes beyond; whole numbers stay exact as floats."""

SEEDS = ("bootstrap", "order")

TAKEN = ("case", "profile", "side")
"""No parameter can be called so: runs and notebooks have arguments of these names."""

ROLES = (
    "ML systems architect",
    "numerical methods owner",
    "compiler quantization engineer",
    "inference platform lead",
)


class Workload(Record):
    """What is executed."""

    kind: Literal["language_model"]
    model: str
    shapes: str = Field(description="shape set that modelled time is for (data/shapes)")


class SlaTarget(Record):
    """A promise to users on one figure."""

    metric: str
    limit: float
    unit: str
    direction: Literal["at_most", "at_least"]


class Scope(Record):
    """For whom and on what the decision holds: never defaulted."""

    slices: list[str] = Field(min_length=1)
    sla: list[SlaTarget] = Field(min_length=1)
    owners: dict[str, str] = Field(description="role -> who")

    @model_validator(mode="after")
    def _every_role(self) -> Scope:
        missing = [role for role in ROLES if role not in self.owners]
        if missing:
            raise ValueError(f"owners lacks {', '.join(missing)}")
        return self


class RunSpec(Record):
    """One side of the comparison: a policy."""

    policy: PolicySheet
    repeats: int = Field(1, ge=1)


class Guardrail(Record):
    """A bound on a quality metric; judged on the upper end of its interval."""

    metric: Literal["delta_nll"]
    threshold: float = Field(gt=0)
    unit: str
    direction: Literal["at_most"]
    confidence: float = Field(gt=0.5, lt=1)


class Parameter(Record):
    """A typed parameter of a case."""

    type: Literal["int", "float", "str", "list"]
    default: Any
    help: str
    choices: list[Any] | None = None
    minimum: float | None = None
    maximum: float | None = None

    @model_validator(mode="after")
    def _bounds_are_of_numbers(self) -> Parameter:
        if self.type in ("str", "list") and (self.minimum, self.maximum) != (None, None):
            raise ValueError(f"minimum and maximum are for numbers, not for type {self.type!r}")
        return self

    def validate_value(self, name: str, value: Any) -> Any:
        """The value in its type; raises RecordError that names what would be valid."""
        valid = self.valid()

        def refuse() -> RecordError:
            return RecordError(f"parameter {name}: {quoted(value)} is not valid; {valid}")

        if self.type == "list":
            items = value.split(",") if isinstance(value, str) else value
            if not isinstance(items, list | tuple) or not items:
                raise refuse()
            items = [str(item).strip() for item in items]
            if len(set(items)) != len(items):
                raise refuse()
            if self.choices and any(item not in self.choices for item in items):
                raise refuse()
            return items
        if self.type == "str":
            if not isinstance(value, str):
                raise refuse()
            converted: Any = value
        else:
            if isinstance(value, bool):
                raise refuse()
            try:
                converted = int(value) if self.type == "int" else float(value)
            except (TypeError, ValueError, OverflowError):
                raise refuse() from None
            if self.type == "int" and isinstance(value, float) and value != converted:
                raise refuse()
            if not -SENSIBLE <= converted <= SENSIBLE:  # NaN is in no range
                raise refuse()
        if self.choices and converted not in self.choices:
            raise refuse()
        low, high = self.minimum, self.maximum
        if (low is not None and converted < low) or (high is not None and converted > high):
            raise refuse()
        return converted

    def valid(self) -> str:
        """What is valid, in words: `a whole number, at least 0`."""
        if self.choices:
            listed = ", ".join(str(choice) for choice in self.choices)
            return f"one {'or more ' if self.type == 'list' else ''}of {listed}"
        words = {"int": "a whole number", "float": "a number", "str": "a text", "list": "a list"}
        text = words[self.type]
        if self.minimum is not None:
            text += f", at least {self.minimum:g}"
        if self.maximum is not None:
            text += f", at most {self.maximum:g}"
        return text


def as_given(value: Any) -> str:
    """A parameter's value as `-p name=value` takes it."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


class Case(Record):
    """A parameterised investigation."""

    schema_: Literal["mpcore.case/1"] = Field("mpcore.case/1", alias="schema")
    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    title: str
    question: str
    notebook: str
    workload: Workload
    scope: Scope
    protocol: Protocol
    failing: RunSpec
    comparator: RunSpec
    guardrail: Guardrail
    parameters: dict[str, Parameter]
    profile: dict[str, dict[str, Any]] = Field(default_factory=dict)
    seeds: dict[str, int]

    @model_validator(mode="after")
    def _names_are_valid(self) -> Case:
        for name in self.parameters:
            if not name.isidentifier() or keyword.iskeyword(name) or name in TAKEN:
                raise ValueError(
                    f"parameters.{name}: a name as Python has them, and none of {', '.join(TAKEN)}"
                )
        for name in SEEDS:
            if self.seeds.get(name, -1) < 0:
                raise ValueError(f"seeds.{name}: a whole number, at least 0, is needed")
        choices = self.parameters["slices"].choices if "slices" in self.parameters else None
        unknown = [name for name in self.scope.slices if choices and name not in choices]
        if unknown:
            raise ValueError(
                f"scope.slices: {', '.join(unknown)} is no choice of parameter slices; choices are "
                f"{', '.join(choices)}"
            )
        return self

    @model_validator(mode="after")
    def _profiles_are_valid(self) -> Case:
        for profile, values in self.profile.items():
            for name, value in values.items():
                if name not in self.parameters:
                    raise ValueError(f"profile.{profile} sets unknown parameter {name}")
                self.parameters[name].validate_value(name, value)
        for name, parameter in self.parameters.items():
            parameter.validate_value(name, parameter.default)
        return self

    def values(self, profile: str | None = None, /, **given: Any) -> dict[str, Any]:
        """Each parameter: its default, then the profile's value, then the given one, checked."""
        chosen = {name: parameter.default for name, parameter in self.parameters.items()}
        if profile not in (None, "default"):
            if not isinstance(profile, str) or profile not in self.profile:
                known = ", ".join(["default", *self.profile])
                raise RecordError(f"profile {quoted(profile)} is not one of {known}")
            chosen.update(self.profile[profile])
        for name in given:
            if name not in self.parameters:
                known = ", ".join(self.parameters)
                raise RecordError(f"parameter {quoted(name)} is unknown; this case has {known}")
        chosen.update(given)
        return {
            name: parameter.validate_value(name, chosen[name])
            for name, parameter in self.parameters.items()
        }


def load_case(path: str | Path) -> Case:
    """Read a case from TOML: a path, or the name of a case in data/cases.

    Raises RecordError with one line: what, where and what would be valid.
    """
    file = find_case(path)
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise RecordError(f"{file}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:  # of any kind: integers can be too long, too
        raise RecordError(f"{file}: not TOML ({error})") from None
    return Case.parse(data, file.name)


def find_case(name: str | Path) -> Path:
    """The TOML file of a case given by path or by name."""
    from mpcore.paths import DATA

    if not isinstance(name, str | Path):
        raise RecordError(f"a case is given by its name or its file, not by {quoted(name)}")
    path = Path(name)
    if path.suffix == ".toml":
        if not path.is_file():
            raise RecordError(f"{path}: no such case file")
        return path
    known = sorted(file.stem for file in (DATA / "cases").glob("*.toml"))
    if not re.fullmatch(r"[A-Za-z0-9_]+", str(name)) or str(name) not in known:
        raise RecordError(f"case {quoted(str(name))} is unknown; known cases: {', '.join(known)}")
    return DATA / "cases" / f"{name}.toml"
