"""One module per lesson: probes, cases, criteria, hints and mistakes."""
