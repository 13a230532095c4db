"""Hold commands that look into model files and runs: ``python -m tianyuan.tools.<name>``."""
