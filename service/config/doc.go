// Package config is the one strict configuration of the plane: its keys, their
// defaults and ranges, the flags, and how file, environment and flags become
// one. What is unknown or out of range is refused by name.
package config
