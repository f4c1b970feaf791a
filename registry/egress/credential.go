package egress

import (
	"crypto/x509"
	"fmt"
	"io"
	"os"
	"strings"
)

const maxCredentialBytes = 1 << 20

// ReadToken returns the bearer token in a file, empty for no file.
func ReadToken(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	data, err := ReadBounded(path, maxCredentialBytes)
	if err != nil {
		return "", err
	}
	return parseToken(path, data)
}

func parseToken(path string, data []byte) (string, error) {
	if path == "" {
		return "", nil
	}
	token := strings.TrimSpace(string(data))
	if token == "" || strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c >= 0x7f }) {
		return "", fmt.Errorf("%s holds no token", path)
	}
	return token, nil
}

// ReadRoots returns the certificates in a file, nil (those of the system) for
// no file.
func ReadRoots(path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	data, err := ReadBounded(path, maxCredentialBytes)
	if err != nil {
		return nil, err
	}
	return parseRoots(path, data)
}

func parseRoots(path string, data []byte) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s holds no certificate", path)
	}
	return roots, nil
}

// ReadBounded reads a file of at most limit bytes. Anything but a file, such
// as a pipe that nobody writes to, is refused.
func ReadBounded(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return data, err
}

// credential is a file that is read again when it is another one than before.
// It is for one goroutine.
type credential struct {
	path string
	info os.FileInfo
	data []byte
}

// read returns what the file holds, nothing for no file, and whether it was
// read anew.
func (c *credential) read() (data []byte, changed bool, err error) {
	if c.path == "" {
		return nil, false, nil
	}
	info, err := os.Stat(c.path)
	if err != nil {
		return nil, false, err
	}
	if c.info != nil && os.SameFile(info, c.info) && info.ModTime().Equal(c.info.ModTime()) && info.Size() == c.info.Size() {
		return c.data, false, nil
	}
	c.info = nil
	if c.data, err = ReadBounded(c.path, maxCredentialBytes); err != nil {
		return nil, false, err
	}
	c.info = info
	return c.data, true, nil
}
