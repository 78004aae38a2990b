"""What has to be equal for two runs to be compared, and a digest over it.

Times and host facts are volatile: they live outside the lock.
"""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, computed_field, model_validator

from mpcore.records.base import Record, digest_of

NOT_RECORDED = "not recorded"


class Protocol(Record):
    """How quality is measured: part of the lock, since other choices give other numbers."""

    window: int = Field(256, ge=2, description="tokens a window; windows do not overlap")
    long_windows: dict[str, Annotated[int, Field(ge=2)]] = Field(
        default_factory=dict, description="slice -> tokens a window, where it is not the default"
    )
    bos: Literal["none"] = "none"
    chat_template: Literal["none"] = "none"
    scored_positions: Literal["1.."] = Field(
        "1..", description="every token of a window but its first is predicted and scored"
    )
    logits_rows: int = Field(128, ge=1, le=128, description="rows of logits held at once")

    def window_of(self, slice_name: str) -> int:
        """Tokens a window of a slice."""
        return self.long_windows.get(slice_name, self.window)


class ModelIdentity(Record):
    """Which weights, from where, under which licence."""

    name: str
    source: str
    sha256: str
    licence: str
    oracle: str = Field(description="what the fp32 oracle is, in words")


class Environment(Record):
    """Software and processor; each a value or 'not recorded'."""

    mpcore: str = NOT_RECORDED
    python: str = NOT_RECORDED
    numpy: str = NOT_RECORDED
    blas: str = NOT_RECORDED
    cpu: str = NOT_RECORDED
    os: str = NOT_RECORDED
    framework: str = NOT_RECORDED
    compiler: str = NOT_RECORDED
    driver: str = NOT_RECORDED
    container: str = NOT_RECORDED

    @classmethod
    def here(cls) -> Environment:
        """This process; framework, compiler and driver tags stay 'not recorded': none ran."""
        import numpy

        blas = numpy.show_config(mode="dicts")["Build Dependencies"]["blas"]
        return cls(
            mpcore=_version("mpcore"),
            python=platform.python_version(),
            numpy=numpy.__version__,
            blas=f"{blas.get('name', '?')} {blas.get('version', '?')}",
            cpu=_cpu_name(),
            os=f"{platform.system()} {platform.machine()}",
            container=os.environ.get("MPCORE_CONTAINER", NOT_RECORDED),
        )


class Lock(Record):
    """Everything that two comparable runs share."""

    schema_: Literal["mpcore.lock/1"] = Field("mpcore.lock/1", alias="schema")
    case: str
    protocol: Protocol
    model: ModelIdentity
    data: dict[str, str] = Field(description="slice -> SHA-256 over its passages")
    tokens_per_slice: dict[str, int] = Field(description="slice -> scored tokens")
    machine: str = Field(description="modelled machine")
    shapes: str = Field(description="shape set that modelled time is for")
    seeds: dict[str, int]
    parameters: dict[str, Any]
    environment: Environment

    @model_validator(mode="wrap")
    @classmethod
    def _digest_is_right(cls, data: Any, validate: Any) -> Lock:
        """A written lock carries its digest; one that does not fit the rest was tampered with."""
        given = None
        if isinstance(data, dict) and "digest" in data:
            data = dict(data)
            given = data.pop("digest")
        lock = validate(data)
        if given is not None and given != lock.digest:
            raise ValueError(f"digest {given!r} does not fit the fields (they give {lock.digest})")
        return lock

    @computed_field
    @property
    def digest(self) -> str:
        """SHA-256 over the canonical JSON of every other field."""
        return digest_of(self.model_dump(mode="json", by_alias=True, exclude={"digest"}))

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return NOT_RECORDED


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or NOT_RECORDED
