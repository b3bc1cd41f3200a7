"""Advice on a waiting rule: durations that were measured, rules played over them, and a page."""
