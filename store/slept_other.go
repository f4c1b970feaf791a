//go:build !linux

package store

import "time"

// sleptFor has no portable source; a suspension shows as a late watchdog.
func sleptFor() time.Duration { return 0 }
