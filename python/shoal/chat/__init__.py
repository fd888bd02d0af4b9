"""Chat templates, tool calls and grammars. These modules do not use the compiled module."""
