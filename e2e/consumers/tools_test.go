package consumers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// root is the folder of the repository.
const root = "../.."

// missing is what a machine lacks to run a consumer.
type missing string

func (m missing) Error() string { return string(m) }

// need fails the test with an error, or skips it where something is missing,
// unless CONSUMERS is "required".
func need(t *testing.T, err error) {
	t.Helper()
	var m missing
	if errors.As(err, &m) && os.Getenv("CONSUMERS") != "required" {
		t.Skip(m)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// python finds an interpreter; with grpc, one that has grpcio.
var (
	python     = sync.OnceValues(func() (string, error) { return interpreter("import sys") })
	pythonGRPC = sync.OnceValues(func() (string, error) { return interpreter("import grpc, google.protobuf") })
)

func interpreter(imports string) (string, error) {
	for _, name := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(name, "-c", imports).Run() == nil {
			return name, nil
		}
	}
	return "", missing("no python3 that can " + imports + " (package python3-grpcio)")
}

// pythonCode generates the code for the Python examples, and returns its
// folder.
var pythonCode = sync.OnceValues(func() (string, error) {
	plugin, err := exec.LookPath("grpc_python_plugin")
	if err != nil {
		return "", missing("no grpc_python_plugin (package protobuf-compiler-grpc)")
	}
	dir := filepath.Join(scratch, "python")
	return dir, protoc(dir, "--python_out="+dir, "--grpc_out="+dir, "--plugin=protoc-gen-grpc="+plugin)
})

func protoc(dir string, args ...string) error {
	if _, err := exec.LookPath("protoc"); err != nil {
		return missing("no protoc (package protobuf-compiler)")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	args = append(args, "-I"+root+"/proto", "loadplane/v1/common.proto", "loadplane/v1/snapshot.proto")
	return run(exec.Command("protoc", args...))
}

func run(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return nil
}

// typescript builds the TypeScript example in a copy of its folder, and returns
// the program.
var typescript = sync.OnceValues(func() (string, error) {
	source, err := filepath.Abs(root + "/docs/examples/typescript")
	if err != nil {
		return "", err
	}
	if _, err := exec.LookPath("node"); err != nil {
		return "", missing("no node")
	}
	modules := filepath.Join(source, "node_modules")
	if _, err := os.Stat(filepath.Join(modules, ".bin", "protoc-gen-es")); err != nil {
		return "", missing("no node_modules: npm ci was not run in docs/examples/typescript")
	}
	dir := filepath.Join(scratch, "typescript")
	gen := filepath.Join(dir, "src", "gen")
	if err := protoc(gen, "--es_out="+gen, "--es_opt=target=ts,import_extension=js",
		"--plugin="+filepath.Join(modules, ".bin", "protoc-gen-es")); err != nil {
		return "", err
	}
	for _, name := range []string{"package.json", "tsconfig.json", "src/view.ts", "src/watch.ts"} {
		text, err := os.ReadFile(filepath.Join(source, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		if err != nil {
			return "", err
		}
	}
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		return "", err
	}
	build := exec.Command(filepath.Join(modules, ".bin", "tsc"))
	build.Dir = dir
	return filepath.Join(dir, "dist", "watch.js"), run(build)
})
