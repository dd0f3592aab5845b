"""Files of other libraries: algorithms, rules and tuner tables, in and out. See docs/formats.md."""
