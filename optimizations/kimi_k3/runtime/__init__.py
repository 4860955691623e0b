"""What happens once per engine step: which path runs, how it runs, and the record of it."""
