"""Dual-stream simultaneous translation: grid model, path search, engine, training."""
