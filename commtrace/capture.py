"""No module: `capture` is a function of `commtrace`, and who imports it as a module is told so."""

raise ImportError("commtrace.capture is a function: `import commtrace`, then `with commtrace.capture(...) as session:`")
