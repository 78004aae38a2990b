"""Policy sheets from templates, with repairs laid over them, and what changed between two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mpcore.errors import InputError
from mpcore.formats import get_element_format
from mpcore.records import PolicyRule, PolicySheet
from mpcore.scaling import check_granularity, elements_and_granularity


class PolicyError(InputError):
    """A policy sheet that names something that does not exist: one line."""


LARGEST_SCALED = 1e12
"""A scaled tensor fills its format's range; products of two such values have to fit fp32 sums."""


def fill_in(sheet: PolicySheet, parameters: Mapping[str, Any]) -> PolicySheet:
    """Replace {name} in the rules by the parameters' values, and check formats and granularities.

    Raises PolicyError where a rule names an unknown parameter, format or granularity, or holds
    braces that are no parameter's name.
    """
    rules = []
    for number, rule in enumerate(sheet.rules, 1):
        where = f"policy {sheet.name!r}, rule {number} ({rule.match})"
        try:
            values = {
                name: value.format(**parameters) if isinstance(value, str) else value
                for name, value in rule.to_dict().items()
            }
            for field in ("activation_format", "weight_format", "accumulator", "output_format"):
                get_element_format(values[field])
            for tensor in ("activation", "weight"):
                granularity = values[f"{tensor}_granularity"]
                if granularity != "none":
                    check_granularity(granularity)
                    _check_scalable(values[f"{tensor}_format"], granularity)
        except KeyError as error:
            known = ", ".join(parameters)
            raise PolicyError(
                f"{where}: no parameter is called {error}; there are {known}"
            ) from None
        except (ValueError, IndexError, AttributeError) as error:
            raise PolicyError(f"{where}: {error}") from None
        rules.append(PolicyRule.parse(values, where))
    return sheet.model_copy(update={"rules": rules})


def _check_scalable(name: str, granularity: str) -> None:
    """Raise PolicyError unless a format can be scaled: signed, in a range that fp32 sums bear."""
    fmt, _ = elements_and_granularity(get_element_format(name), granularity, None)
    if not fmt.is_signed:
        raise PolicyError(f"{name} has no negative values: a scaled tensor needs a signed format")
    if fmt.max > LARGEST_SCALED:
        raise PolicyError(
            f"{name} reaches {fmt.max:.2g}, which needs no scale and would overflow sums in fp32; "
            "use granularity 'none'"
        )


def repaired(
    sheet: PolicySheet, name: str, patterns: Iterable[str], note: str, **changes: str
) -> PolicySheet:
    """A next revision in which the operators that `patterns` match differ by `changes`.

    Each pattern takes over the rule that decides it now; patterns are operator names, or
    shell-style patterns whose operators share one rule.
    """
    rules = []
    for pattern in patterns:
        sample = pattern.replace("*", "0")
        rule = sheet.rule_for(sample)
        rules.append(rule.model_copy(update={"match": pattern, **changes}))
    return sheet.with_rules_above(name, rules, note)


def changed_operators(
    before: PolicySheet, after: PolicySheet, operators: Iterable[str]
) -> list[str]:
    """Operators that are computed differently."""

    def settings(sheet: PolicySheet, operator: str) -> dict:
        return sheet.rule_for(operator).model_dump(exclude={"match"})

    return [name for name in operators if settings(before, name) != settings(after, name)]
