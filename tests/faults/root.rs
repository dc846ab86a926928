//! Rows that need root and the kernel's help: `scripts/faults --root`. What a row made it takes away, also when it fails.
