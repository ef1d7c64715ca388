"""The files of run directories: each is written from one of these records. Knows no torch.

docs/run-directory.md is generated from them (`python tests/docs/contract_page.py`). The analysis shares no code with
this package; a test compares its own records with these, field by field.
"""
