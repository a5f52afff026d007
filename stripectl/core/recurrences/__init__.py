"""The recurrences, one file each; `stripectl.core.recurrence.recurrences` finds them by listing this folder."""
