"""A dozen recorded conversations to try things with: `transcripts.jsonl.gz`, one {"id", "source", "items"} a line.

Ten come from sierra-research/tau-bench; one of a fork of it (avaljotsingh/tau-bench) has tool arguments that are not
JSON, one of a fork of tau2-bench (WhissleAI/tau2-bench-w) begins with the assistant. All are MIT licensed; the licence
texts lie beside this file. The people in them are simulated.
"""
