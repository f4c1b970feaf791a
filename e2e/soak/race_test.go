//go:build race

package soak

import "time"

const usual = 15 * time.Minute
