package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

const redacted = "REDACTED"

// Secret is a credential that no log, format, or encoding shows. It is
// immutable; the zero Secret equals nothing.
type Secret struct{ sum *[sha256.Size]byte }

// NewSecret keeps what is needed to recognise text, and not text itself.
func NewSecret(text string) Secret {
	sum := sha256.Sum256([]byte(text))
	return Secret{&sum}
}

// Equal compares in constant time.
func (s Secret) Equal(text string) bool {
	sum := sha256.Sum256([]byte(text))
	return s.sum != nil && subtle.ConstantTimeCompare(s.sum[:], sum[:]) == 1
}

// String returns a fixed word.
func (s Secret) String() string { return redacted }

// Format writes a fixed word for every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// LogValue returns a fixed word.
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText returns a fixed word.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// parseToken reads a bearer token out of a file's content.
func parseToken(content []byte) (Secret, error) {
	token := strings.TrimRight(string(content), "\r\n")
	if token == "" {
		return Secret{}, fmt.Errorf("the file holds no token")
	}
	for _, r := range token {
		if r <= ' ' || r > '~' {
			return Secret{}, fmt.Errorf("the token holds a character other than visible ASCII")
		}
	}
	return NewSecret(token), nil
}
