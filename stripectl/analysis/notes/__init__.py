"""The notes, one file each; `stripectl.analysis.note.notes` finds them by listing this folder."""
