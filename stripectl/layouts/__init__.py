"""The layouts, one file each; `stripectl.core.layout.layouts()` finds them by listing this folder."""
