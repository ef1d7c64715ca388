"""The files of run directories: each is written from one of these records, and read as it. Knows no torch.

docs/run-directory.md is generated from them (`python tests/docs/contract_page.py`).
"""
