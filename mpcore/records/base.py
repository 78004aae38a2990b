"""What every record shares: strict fields, canonical JSON, a digest, one kind of error."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from mpcore.errors import InputError


class RecordError(InputError):
    """A record that does not hold what its schema asks for: one line, what and where."""


class Record(BaseModel):
    """A frozen record: unknown fields, NaN and infinity are refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True
    )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, field names as published."""
        return self.model_dump(mode="json", by_alias=True)

    def to_json(self) -> str:
        """Readable JSON, the same bytes for the same content."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def parse(cls, data: object, where: str = "record") -> Self:
        """Validate plain data; raises RecordError naming the first field that is wrong."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise RecordError(_first_problem(error, where)) from None

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a JSON file; raises RecordError with one line."""
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
            data = json.loads(text, parse_constant=_no_number)
            canonical_json(data).encode()  # what cannot be written again: lone surrogates
        except OSError as error:
            raise RecordError(f"{path}: cannot be read ({error.strerror})") from None
        except (ValueError, RecursionError) as error:
            raise RecordError(f"{path}: not JSON ({error})") from None
        return cls.parse(data, str(path))


def _first_problem(error: ValidationError, where: str) -> str:
    problem = error.errors(include_url=False)[0]
    field = "".join(f"{part}." for part in problem["loc"]).rstrip(".")
    parts = [where, *filter(None, [field]), problem["msg"].removeprefix("Value error, ")]
    more = error.error_count() - 1
    return ": ".join(parts) + (f" (and {more} more)" if more else "")


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number in JSON")


def canonical_json(data: object) -> str:
    """One text for one content: sorted keys, no spaces, UTF-8, no NaN."""
    return json.dumps(
        data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def digest_of(data: object) -> str:
    """SHA-256 of the canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(data).encode()).hexdigest()
