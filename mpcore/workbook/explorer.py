"""What every explorer is made of: traits that a person changes, and one picture that follows.

An explorer's picture is a function of its traits and nothing else. It is drawn in Python, so it is
the same in JupyterLab, in a test and in an exported page; the front end (`static/explorer.js`)
shows it and passes on what is clicked or typed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from html import escape
from numbers import Integral
from pathlib import Path
from typing import Any, NoReturn

import anywidget
import traitlets

from mpcore.errors import InputError, quoted
from mpcore.report.palette import variables
from mpcore.workbook.drawing import MUTED, Drawing

STATIC = Path(__file__).parent / "static"

# JupyterLab and Notebook name their theme on <body>, VS Code too; elsewhere the system decides.
_DARK_HOSTS = (
    '[data-jp-theme-light="false"]',
    '[data-vscode-theme-kind*="dark"]',
    '[data-vscode-theme-kind="vscode-high-contrast"]',
)
_NO_HOST = "body:not([data-jp-theme-light]):not([data-vscode-theme-kind])"


@lru_cache(maxsize=1)
def style_sheet() -> str:
    """The one style sheet of explorers and of the pictures that stand for them elsewhere."""
    boxes = (".mp-explorer", ".mp-figure-box")
    light, dark = variables("light"), variables("dark")
    hosted = ",".join(f"{host} {box}" for host in _DARK_HOSTS for box in boxes)
    alone = ",".join(f"{_NO_HOST} {box}" for box in boxes)
    return (
        f"{','.join(boxes)}{{{light}}}{hosted}{{{dark}}}"
        f"@media screen and (prefers-color-scheme:dark){{{alone}{{{dark}}}}}"
        + (STATIC / "explorer.css").read_text(encoding="utf-8")
    )


def boxed(html: str) -> str:
    """HTML in a box whose colours follow the scheme around it, without a script."""
    return f'<style>{style_sheet()}</style><div class="mp-figure-box">{html}</div>'


def figure_html(picture: str, caption: str) -> str:
    """A picture with its caption, boxed."""
    return boxed(f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>")


class RefusedError(InputError, traitlets.TraitError):
    """A value that a trait of an explorer does not take; traitlets puts the old one back."""


def validate(*names: str):
    """`traitlets.validate` for methods that raise InputError."""

    def made(method):
        def checked(self, proposal):
            try:
                return method(self, proposal)
            except InputError as error:
                raise RefusedError(str(error)) from None

        return traitlets.validate(*names)(checked)

    return made


class Whole(traitlets.Int):
    """A whole number from `min` to `max` (which may be None); True and False are none."""

    def validate(self, obj, value):
        fits = isinstance(value, Integral) and not isinstance(value, bool)
        if not fits or value < self.min or (self.max is not None and value > self.max):
            self.error(obj, value)
        return int(value)

    def info(self):
        return f"a whole number from {self.min} {'on' if self.max is None else f'to {self.max}'}"


def _refuse(
    trait: traitlets.TraitType,
    obj: object,
    value: object,
    error: Exception | None = None,
    info: str | None = None,
) -> NoReturn:
    """Instead of a trait's own `error`, which quotes a value in full: one line."""
    if error is not None:  # of an item of a list: (item, what it should be, its trait)
        value, info = error.args[:2]
    raise RefusedError(f"{trait.name} = {quoted(value)} must be {info or trait.info()}")


def nothing_to_draw() -> str:
    """The picture of a state that has none."""
    drawing = Drawing(44)
    drawing.text(10, 28, "Nothing can be drawn for this.", fill=MUTED)
    return drawing.svg("no picture")


class Explorer(anywidget.AnyWidget):
    """Base of the explorers. A subclass has traits of its own, `inputs`, `draw` and `controls_of`.

    Reading `picture` (SVG text) and `spoken` (the same in words) needs no browser: they are up to
    date after every change of a trait.
    """

    _esm = STATIC / "explorer.js"
    _css = style_sheet()

    inputs: tuple[str, ...] = ()
    """Names of the traits that the picture depends on."""

    title = traitlets.Unicode().tag(sync=True)
    controls = traitlets.List().tag(sync=True)
    picture = traitlets.Unicode().tag(sync=True)
    spoken = traitlets.Unicode().tag(sync=True)
    problem = traitlets.Unicode().tag(sync=True)
    result = traitlets.Unicode().tag(sync=True)
    notes = traitlets.Dict().tag(sync=True)
    limits = traitlets.Dict().tag(sync=True)
    strides = traitlets.Dict().tag(sync=True)
    off = traitlets.List().tag(sync=True)
    drawn = traitlets.Int().tag(sync=True)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for trait in vars(cls).values():
            if isinstance(trait, traitlets.TraitType):
                trait.error = partial(_refuse, trait)

    def __init__(self, **traits: Any) -> None:
        unknown = sorted(set(traits) - set(self.inputs))
        if unknown:
            known = ", ".join(self.inputs)
            raise InputError(f"{type(self).__name__} has no {', '.join(unknown)}; it has {known}")
        super().__init__(**traits)
        self.controls = self.controls_of()
        self.redraw()
        self.observe(lambda _: self.redraw(), list(self.inputs))
        self.on_msg(lambda _, content, __: self._pressed(content))

    def controls_of(self) -> list[dict[str, Any]]:
        """The form: a list of `select`, `range`, `text` … below."""
        raise NotImplementedError

    def draw(self) -> None:
        """Set `picture`, `spoken` and, where they change, `notes`, `limits` and `off`.

        Raises InputError for a state that cannot be drawn: one line, shown above an empty picture.
        """
        raise NotImplementedError

    def press(self, key: str) -> None:
        """Do what the button or the part of the picture called `key` does."""
        raise InputError(f"{type(self).__name__} has no button {quoted(key)}")

    def redraw(self) -> None:
        """Draw, and send whatever has changed in one message."""
        with self.hold_sync():
            try:
                self.draw()
                self.problem = ""
            except InputError as error:
                self.problem = str(error)
                self.picture, self.spoken = nothing_to_draw(), ""  # the state's, not the last one's
            except Exception as error:
                self.problem = f"a defect of this explorer: {type(error).__name__}: {error}"
                raise
            finally:
                self.drawn += 1  # the front end waits for an answer, whatever it is

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """Take over what a front end has changed; what is refused is told, and answered."""
        try:
            super().set_state(sync_data)
        except (traitlets.TraitError, InputError) as error:
            with self.hold_sync():
                self.problem = " ".join(str(error).split())
                self.drawn += 1

    def _pressed(self, content: object) -> None:
        if isinstance(content, dict) and isinstance(content.get("press"), str):
            try:
                self.press(content["press"])
            except InputError as error:  # a stale front end can press what is gone
                with self.hold_sync():
                    self.problem = str(error)
                    self.drawn += 1  # else it would not be shown

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle
        return {**data, "text/html": self.static_html()}, metadata

    def static_html(self) -> str:
        """The present state for pages without a kernel: picture and words."""
        return figure_html(self.picture, self.problem or self.spoken or self.title)

    def __repr__(self) -> str:
        return f"{self.title}: {self.spoken}"


def select(name: str, label: str, options: Sequence[str] | dict[str, str]) -> dict[str, Any]:
    """A choice; `options` are values, or value -> what is shown."""
    pairs = options.items() if isinstance(options, dict) else zip(options, options, strict=True)
    return {"kind": "select", "name": name, "label": label, "options": [list(p) for p in pairs]}


def slider(name: str, label: str, low: float, high: float, step: float = 1) -> dict[str, Any]:
    """A range; the trait `limits` can move its ends, `notes` says its value in words."""
    return {
        "kind": "range",
        "name": name,
        "label": label,
        "min": low,
        "max": high,
        "step": step,
    }


def checkbox(name: str, label: str) -> dict[str, Any]:
    """A yes or no."""
    return {"kind": "checkbox", "name": name, "label": label}


def radio(name: str, label: str, options: dict[str, str]) -> dict[str, Any]:
    """One of several answers, all of them shown: value -> text."""
    pairs = [list(pair) for pair in options.items()]
    return {"kind": "radio", "name": name, "label": label, "options": pairs}


def text_box(name: str, label: str) -> dict[str, Any]:
    """A line to type into; taken over by Enter, or when the box is left."""
    return {"kind": "text", "name": name, "label": label}


def checkboxes(name: str, label: str, options: list[str]) -> dict[str, Any]:
    """Ticks for a list: the trait is the list of those values that are ticked."""
    return {
        "kind": "checkboxes",
        "name": name,
        "label": label,
        "options": [[value, value] for value in options],
    }


def buttons(label: str, options: dict[str, tuple[str, str]]) -> dict[str, Any]:
    """Buttons: key -> (what is shown, what is read aloud)."""
    return {
        "kind": "buttons",
        "name": "",
        "label": label,
        "options": [[key, *texts] for key, texts in options.items()],
    }


def play(of: str, every_ms: int = 60) -> dict[str, Any]:
    """A button that moves the slider of trait `of` to its end."""
    return {"kind": "play", "of": of, "label": "play", "every_ms": every_ms}
