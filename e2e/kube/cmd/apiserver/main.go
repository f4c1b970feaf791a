// Command apiserver is a kube-apiserver with an etcd of its own in one process,
// for tests: it listens on loopback, keeps everything in one folder, and runs no
// controllers. It runs until a signal.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	folder := flag.String("folder", "", "folder of the data, certificate and keys; tokens.csv and sa.key lie in it")
	port := flag.Int("port", 0, "port on loopback, 1 to 65535")
	flag.Parse()
	code, err := run(*folder, *port)
	if err != nil {
		slog.Error("API server failed", "error", err)
		code = 1
	}
	os.Exit(code)
}

// run serves until a signal, which the command itself waits for, and returns the code to exit with.
func run(folder string, port int) (code int, err error) {
	if folder == "" || port < 1 {
		return 0, errors.New("--folder and --port have to be set")
	}
	db, err := startEtcd(filepath.Join(folder, "etcd"))
	if err != nil {
		return 0, fmt.Errorf("etcd: %w", err)
	}
	defer db.Close()
	cmd := app.NewAPIServerCommand()
	cmd.SetArgs(append(settings(folder, port), "--etcd-servers=http://"+db.Clients[0].Addr().String()))
	return cli.Run(cmd), nil
}

// startEtcd returns an etcd that is ready. It does not sync its files: only a
// crash of the machine would need that.
func startEtcd(folder string) (*embed.Etcd, error) {
	loopback := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg := embed.NewConfig()
	cfg.Dir = folder
	cfg.LogLevel = "error"
	cfg.UnsafeNoFsync = true
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = loopback, loopback
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = loopback, loopback
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	db, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, err
	}
	select {
	case <-db.Server.ReadyNotify():
		return db, nil
	case err = <-db.Err():
	case <-time.After(time.Minute):
		err = errors.New("not ready after a minute")
	}
	db.Close()
	return nil, err
}

// settings returns the API server's flags.
func settings(folder string, port int) []string {
	return []string{
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(port),
		"--cert-dir=" + filepath.Join(folder, "certs"),
		"--token-auth-file=" + filepath.Join(folder, "tokens.csv"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + filepath.Join(folder, "sa.key"),
		"--service-account-signing-key-file=" + filepath.Join(folder, "sa.key"),
		"--authorization-mode=RBAC",
		"--disable-admission-plugins=ServiceAccount", // its controller does not run
		"--service-cluster-ip-range=10.0.0.0/24",
		"--endpoint-reconciler-type=none",
		"--shutdown-delay-duration=0",
	}
}
