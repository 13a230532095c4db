"""A plugin that raises at import."""

raise OSError("libfixture.so: cannot open shared object file")
