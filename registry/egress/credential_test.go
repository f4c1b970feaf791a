package egress

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"
	"time"
)

// selfSigned makes a certificate that nobody uses.
func selfSigned(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestReadToken(t *testing.T) {
	for name, c := range map[string]struct {
		path, want string
		bad        bool
	}{
		"no file":   {"", "", false},
		"a token":   {write(t, "a", "secret\r\n"), "secret", false},
		"empty":     {write(t, "b", ""), "", true},
		"two lines": {write(t, "c", "a\nb"), "", true},
		"a folder":  {t.TempDir(), "", true},
		"missing":   {"/nowhere/token", "", true},
		"too long":  {write(t, "d", long(maxCredentialBytes+1)), "", true},
	} {
		if got, err := ReadToken(c.path); got != c.want || (err != nil) != c.bad {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
}

func TestReadRoots(t *testing.T) {
	if pool, err := ReadRoots(""); pool != nil || err != nil {
		t.Errorf("no file: got %v, %v", pool, err)
	}
	if pool, err := ReadRoots(write(t, "ca", string(selfSigned(t)))); pool == nil || err != nil {
		t.Errorf("a certificate: got %v, %v", pool, err)
	}
	for name, path := range map[string]string{"no certificate": write(t, "x", "x"), "missing": "/nowhere/ca"} {
		if _, err := ReadRoots(path); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
