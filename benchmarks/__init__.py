"""Measurements, printed as ratios of runs made side by side. Never a test: no number here fails a build."""
