"""Rules of the serve protocol as files, and what plays them against an engine."""
