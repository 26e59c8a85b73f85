"""Reports: records in, tables and one self-contained page out; no torch here."""
