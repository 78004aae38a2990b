"""A small case with a notebook that takes a second: for tests of `mpcore report` itself."""

from __future__ import annotations

from pathlib import Path

import nbformat
from packets import make_packet

from mpcore.paths import DATA

PARAMETERS = """
[parameters.granularity]
type = "str"
default = "per_tensor"
choices = ["per_tensor", "per_token"]
help = "which activations share a scale"

[parameters.tokens]
type = "int"
default = 256
minimum = 16
help = "scored tokens"

[profile.test]
tokens = 64
"""

LAST_CELL = """import os, shutil
from pathlib import Path
from mpcore.progress import report
report("almost done", 9, 10)
_ = shutil.copy("packet_of_the_test.json", Path(os.environ["MPCORE_PACKET"]) / "packet.json")"""


def write_mini_case(folder: Path, cell: str = "print(granularity, tokens, profile)") -> Path:
    """Write a case file, its notebook (with `cell` in the middle) and a packet; returns the case.

    Everything but name, notebook and parameters is that of int8_outliers.
    """
    text = (DATA / "cases" / "int8_outliers.toml").read_text(encoding="utf-8")
    text = text.split("[parameters.")[0].replace("{activation_format}", "int8")
    text = text.replace("{weight_format}", "int8").replace("{granularity}", "per_tensor")
    text = text.replace('name = "int8_outliers"', 'name = "mini"')
    text = text.replace("notebooks/cases/int8_outliers.ipynb", "mini.ipynb")
    case = folder / "mini.toml"
    case.write_text(text + PARAMETERS, encoding="utf-8")
    (folder / "packet_of_the_test.json").write_text(make_packet().to_json(), encoding="utf-8")
    parameters = nbformat.v4.new_code_cell(
        'granularity = "per_tensor"\ntokens = 256\nprofile = "default"',
        metadata={"tags": ["parameters"]},
    )
    cells = [
        nbformat.v4.new_markdown_cell("# A mini case"),
        parameters,
        *(nbformat.v4.new_code_cell(source) for source in (cell, LAST_CELL)),
    ]
    for number, made in enumerate(cells):
        made.id = f"cell-{number}"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "mini.ipynb")
    return case
