"""The layouts, one file each; `stripectl.layout.layouts()` finds them by listing this folder."""
