package usage

import (
	"slices"
	"testing"

	"github.com/spf13/cobra"
)

// group returns a command with commands below it.
func group() *cobra.Command {
	none := func(*cobra.Command, []string) {}
	root := &cobra.Command{Use: "tool", Run: none}
	root.AddCommand(&cobra.Command{Use: "list", Run: none}, &cobra.Command{Use: "drain ID", Run: none}, &cobra.Command{Use: "train", Run: none})
	return root
}

func TestGroup(t *testing.T) {
	for word, want := range map[string]string{
		"xyzzy": `unknown command "xyzzy" for "tool"`,
		"lsit":  `unknown command "lsit" for "tool"; did you mean list?`,
		"rain":  `unknown command "rain" for "tool"; did you mean drain or train?`,
	} {
		if err := Group(group(), []string{word}); err == nil || err.Error() != want {
			t.Errorf("%s: %v", word, err)
		}
	}
	if err := Group(group(), nil); err != nil {
		t.Errorf("nothing after it: %v", err)
	}
}

func TestOne(t *testing.T) {
	cmd := group().Commands()[0] // drain ID
	if err := One(cmd, []string{"a"}); err != nil {
		t.Error(err)
	}
	for n, args := range [][]string{{}, nil, {"a", "b"}} {
		if err := One(cmd, args); err == nil {
			t.Errorf("case %d: %d arguments are taken", n, len(args))
		}
	}
	if err := One(cmd, nil); err.Error() != "want one argument, not 0: tool drain ID" {
		t.Error(err)
	}
}

func TestComplete(t *testing.T) {
	cmd := group()
	cmd.Flags().String("colour", "", "")
	Complete(cmd, "colour", []string{"red", "green"})
	complete, found := cmd.GetFlagCompletionFunc("colour")
	if !found {
		t.Fatal("nothing is completed")
	}
	if got, _ := complete(cmd, nil, ""); !slices.Equal(got, []string{"red", "green"}) {
		t.Error(got)
	}
	defer func() {
		if recover() == nil {
			t.Error("a flag that is not there is completed")
		}
	}()
	Complete(cmd, "size", nil)
}

func TestWords(t *testing.T) {
	type kind string
	if got := Words([]kind{"a", "b"}); !slices.Equal(got, []string{"a", "b"}) {
		t.Error(got)
	}
}
