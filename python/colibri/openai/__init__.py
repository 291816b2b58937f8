"""The OpenAI dialect as pure functions on dictionaries; nothing here knows HTTP or the engine."""
