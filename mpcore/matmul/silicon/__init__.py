"""The silicon check: instructions of our table on a real GPU, compared bit for bit with `mma`.

`layouts.py` says which thread holds which element, `ptx.py` writes a kernel of one instruction,
`driver.py` runs it, `cases.py` makes the operands, `check.py` compares, `marks.py` keeps what was
found and writes docs/matrix_units.md. Run as `python -m mpcore.matmul.silicon`.
"""
