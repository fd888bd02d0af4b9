"""The HTTP server of `shoal serve`: OpenAI's and Anthropic's interfaces, and parts of llama-server's."""
