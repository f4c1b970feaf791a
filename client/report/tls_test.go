package report

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"testing"
	"time"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// certificate returns one for 127.0.0.1 that signed itself.
func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// A reporter speaks HTTP/2 over TLS, by the CAs that it was given.
func TestTLS(t *testing.T) {
	cert, pool := certificate(t)
	answered := make(chan *pb.ReportRequest, 1)
	s := &script{register: granted, report: func(stream pb.ReportService_ReportServer) error {
		first, err := stream.Recv()
		if err != nil {
			return err
		}
		select {
		case answered <- first:
		default:
		}
		<-stream.Context().Done()
		return nil
	}}
	server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&cert)))
	pb.RegisterRegistrationServiceServer(server, s)
	pb.RegisterReportServiceServer(server, s)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	e := &engine{source: "a"}
	r, err := New(Options{
		Address: "https://" + listener.Addr().String(), TLS: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13},
		Registration: &pb.RegisterRequest{Url: testURL}, Report: e.report,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	first := <-answered
	if first.GetLeaseId() != "x" || first.GetReport().GetSequence() != 1 {
		t.Errorf("the first frame is %v", first)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
