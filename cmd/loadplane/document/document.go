// Package document writes messages of the plane for programs, as JSON and as
// YAML. Characters that a terminal or a reader may take for something else are
// escaped, as the format allows it within its strings.
package document

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Line returns m as JSON in one line.
func Line(m proto.Message) ([]byte, error) {
	doc, err := compact(m)
	return []byte(EscapeJSON(doc)), err
}

// compact returns m as JSON without spaces, not escaped.
func compact(m proto.Message) (string, error) {
	b, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return "", err
	}
	// protojson varies its spaces on purpose.
	var out bytes.Buffer
	err = json.Compact(&out, b)
	return out.String(), err
}

// Write writes m as YAML where the format is "yaml", else as indented JSON.
func Write(w io.Writer, m proto.Message, format string) error {
	doc, err := compact(m)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if format == "yaml" {
		err = jsonToYAML(&out, doc)
	} else {
		err = json.Indent(&out, []byte(EscapeJSON(doc)), "", "  ")
		out.WriteByte('\n')
	}
	if err != nil {
		return err
	}
	_, err = w.Write(out.Bytes())
	return err
}

// EscapeJSON writes what is not printable in a JSON document as JSON can write
// every character. Such characters stand in strings only.
func EscapeJSON(doc string) string {
	return escape(doc, func(r rune) (text string) {
		for _, unit := range utf16.AppendRune(nil, r) {
			text += fmt.Sprintf(`\u%04x`, unit)
		}
		return text
	})
}

func escape(doc string, as func(rune) string) string {
	var b strings.Builder
	for _, r := range doc {
		if r == '\n' || unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(as(r))
		}
	}
	return b.String()
}

// escapeYAML writes a character as YAML can within double quotes, where it knows
// no surrogates.
func escapeYAML(r rune) string { return fmt.Sprintf(`\U%08x`, r) }

// jsonToYAML keeps the order of the keys.
func jsonToYAML(w io.Writer, doc string) error {
	dec := json.NewDecoder(strings.NewReader(doc))
	dec.UseNumber()
	root, err := node(dec)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil {
		return err
	}
	if err := enc.Close(); err != nil {
		return err
	}
	_, err = io.WriteString(w, escape(out.String(), escapeYAML))
	return err
}

// node reads the next value.
func node(dec *json.Decoder) (*yaml.Node, error) {
	token, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch v := token.(type) {
	case json.Delim:
		return container(dec, v)
	case string:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.DoubleQuotedStyle, Value: v}, nil
	}
	n := new(yaml.Node)
	if token == nil {
		n.Kind, n.Tag, n.Value = yaml.ScalarNode, "!!null", "null"
		return n, nil
	}
	// A number or a truth value is written in YAML as in JSON.
	n.Kind, n.Value = yaml.ScalarNode, fmt.Sprint(token)
	return n, nil
}

// container reads an object or an array.
func container(dec *json.Decoder, open json.Delim) (*yaml.Node, error) {
	n := &yaml.Node{Kind: yaml.SequenceNode}
	if open == '{' {
		n.Kind = yaml.MappingNode
	}
	for dec.More() {
		inner, err := node(dec)
		if err != nil {
			return nil, err
		}
		if key := n.Kind == yaml.MappingNode && len(n.Content)%2 == 0; key && printable(inner.Value) {
			inner.Style = 0 // quoted where it is read as something else without
		}
		n.Content = append(n.Content, inner)
	}
	_, err := dec.Token() // the closing one
	return n, err
}

// printable says that nothing in s is to be escaped, which is possible in
// quotes only.
func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}
