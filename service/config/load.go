package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"
	koanfyaml "github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// maxFileBytes bounds the configuration file.
const maxFileBytes = 1 << 20

// EnvPrefix begins the name of every environment variable of the plane.
const EnvPrefix = "LOADPLANE_"

// Load returns the defaults, overridden by the YAML file, then by the
// LOADPLANE_ variables of environ (in the form of os.Environ), then by the
// flags of fs that were given. The file is named by --config or
// LOADPLANE_CONFIG. An unknown key or a value of the wrong kind is a
// *Error that names it and its source. Ranges are for
// Config.Validate. A nil fs has no flags.
func Load(fs *pflag.FlagSet, environ []string) (Config, error) {
	cfg := Default()
	if path := configPath(fs, environ); path != "" {
		if err := loadFile(&cfg, path); err != nil {
			return Config{}, err
		}
	}
	if err := loadEnvironment(&cfg, environ); err != nil {
		return Config{}, err
	}
	if fs == nil {
		return cfg, nil
	}
	if err := loadFlags(&cfg, fs); err != nil {
		return Config{}, err
	}
	return cfg, nil
}

func configPath(fs *pflag.FlagSet, environ []string) string {
	if fs != nil && fs.Changed(FileFlag) {
		path, _ := fs.GetString(FileFlag)
		return path
	}
	path := ""
	for _, e := range environ {
		if v, ok := strings.CutPrefix(e, EnvPrefix+"CONFIG="); ok {
			path = v
		}
	}
	return path
}

func loadFile(cfg *Config, path string) error {
	l := layer{ko: koanf.New(keyDelim), source: "configuration file " + path, name: func(key string) string { return key }}
	if info, err := os.Stat(path); err == nil && (!info.Mode().IsRegular() || info.Size() > maxFileBytes) {
		return Errorf("%s: not a regular file of at most 1 MiB", l.source)
	}
	if err := l.ko.Load(file.Provider(path), strictYAML{koanfyaml.Parser()}); err != nil {
		return Errorf("%s: %w", l.source, err)
	}
	return l.decode(cfg)
}

func loadEnvironment(cfg *Config, environ []string) error {
	l := layer{ko: koanf.New(keyDelim), source: "environment", name: envName}
	p := env.Provider(keyDelim, env.Opt{
		Prefix:        EnvPrefix,
		EnvironFunc:   func() []string { return environ },
		TransformFunc: envValue,
	})
	if err := l.ko.Load(p, nil); err != nil {
		return Errorf("%s: %w", l.source, err)
	}
	return l.decode(cfg)
}

func loadFlags(cfg *Config, fs *pflag.FlagSet) error {
	known := configKeys()
	l := layer{ko: koanf.New(keyDelim), source: "flags", name: func(key string) string { return "--" + strings.ReplaceAll(key, "_", "-") }}
	// Commands have flags of their own beside those of RegisterFlags.
	p := posflag.ProviderWithFlag(fs, keyDelim, nil, func(f *pflag.Flag) (string, any) {
		key := strings.ReplaceAll(f.Name, "-", "_")
		if !slices.Contains(known, key) {
			return "", nil
		}
		return key, posflag.FlagVal(fs, f)
	})
	if err := l.ko.Load(p, nil); err != nil {
		return Errorf("%s: %w", l.source, err)
	}
	return l.decode(cfg)
}

// keyDelim is a delimiter that no key contains: the configuration is flat.
const keyDelim = "\x00"

func envName(key string) string { return EnvPrefix + strings.ToUpper(key) }

// envValue returns the key and the value of an environment variable; an empty
// key drops it. Only the exact upper-case spelling of a key is known.
func envValue(name, value string) (string, any) {
	switch name {
	case EnvPrefix + "CONFIG":
		return "", nil
	case EnvPrefix + "EXTRA_INPUTS", EnvPrefix + "MUTATIONS":
		// They belong to the project's tests and say nothing to the service.
		return "", nil
	}
	key := strings.ToLower(strings.TrimPrefix(name, EnvPrefix))
	if serviceLink.MatchString(name) && (!slices.Contains(configKeys(), key) || strings.Contains(value, "://")) {
		return "", nil
	}
	if key == "" || envName(key) != name {
		return name, value
	}
	switch key {
	case "worker", "dns":
		return key, strings.Fields(value)
	case "insecure_allow_plaintext", "trusted_proxy", "dns_server", "kubernetes_namespaces", "kubernetes_services", "egress_allow":
		return key, strings.FieldsFunc(value, func(r rune) bool { return r == ',' })
	}
	return key, value
}

// serviceLink matches what Kubernetes sets in every container for a Service
// whose name begins with loadplane. A key may look like it; what Kubernetes sets
// then is a URL.
var serviceLink = regexp.MustCompile(`^LOADPLANE_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// layer is one source of configuration.
type layer struct {
	ko     *koanf.Koanf
	source string
	// name spells a key as the source does.
	name func(key string) string
}

func (l layer) decode(cfg *Config) error {
	var problems []string
	known := configKeys()
	for key, value := range l.ko.Raw() {
		switch {
		case !slices.Contains(known, key):
			problems = append(problems, fmt.Sprintf("%s: unknown setting %q", l.source, l.spell(key)))
		case value == nil:
			problems = append(problems, fmt.Sprintf("%s: %s has no value", l.source, l.spell(key)))
		default:
			if err := l.decodeKey(cfg, key, value); err != nil {
				problems = append(problems, fmt.Sprintf("%s: %s: %v", l.source, l.spell(key), err))
			}
		}
	}
	if len(problems) == 0 {
		return nil
	}
	slices.Sort(problems)
	return &Error{Problems: problems}
}

// spell leaves a name alone that is not a key in the source's own spelling.
func (l layer) spell(key string) string {
	if strings.HasPrefix(key, EnvPrefix) {
		return key
	}
	return l.name(key)
}

func (l layer) decodeKey(cfg *Config, key string, value any) error {
	one := koanf.New(keyDelim)
	if err := one.Set(key, value); err != nil {
		return err
	}
	err := one.UnmarshalWithConf("", cfg, koanf.UnmarshalConf{DecoderConfig: &mapstructure.DecoderConfig{
		DecodeHook:  mapstructure.DecodeHookFuncType(convert),
		ErrorUnused: true,
		ZeroFields:  true,
		MatchName:   func(key, field string) bool { return key == field },
	}})
	if err != nil {
		return wantError(cfg, key)
	}
	return nil
}

// wantError says what a key takes. It does not repeat the value.
func wantError(cfg *Config, key string) error {
	switch v := configField(cfg, key).Interface().(type) {
	case time.Duration:
		return errors.New("want a duration with its unit, such as 1500ms or 2s")
	case int:
		return errors.New("want a whole number")
	case bool:
		return errors.New("want true or false")
	case Port:
		return errors.New("want the name or the number of a port")
	case []string:
		return errors.New("want a list of texts")
	case string:
		return errors.New("want a text")
	default:
		return fmt.Errorf("want %T", v)
	}
}

// convert is strict: numbers without a unit are no durations, fractions are
// no whole numbers. Texts convert, since the environment has nothing else.
func convert(from, to reflect.Type, value any) (any, error) {
	text, isText := value.(string)
	switch to {
	case reflect.TypeFor[time.Duration]():
		if isText {
			return time.ParseDuration(text)
		}
		if from != to {
			return nil, fmt.Errorf("%v is no duration", from)
		}
	case reflect.TypeFor[int]():
		if isText {
			return strconv.Atoi(text)
		}
		if from != to {
			return nil, fmt.Errorf("%v is no whole number", from)
		}
	case reflect.TypeFor[bool]():
		if text == "true" || text == "false" {
			return text == "true", nil
		}
		if from != to {
			return nil, fmt.Errorf("%v is neither true nor false", from)
		}
	case reflect.TypeFor[Port]():
		if n, ok := value.(int); ok {
			return strconv.Itoa(n), nil
		}
	case reflect.TypeFor[[]string]():
		if from.Kind() != reflect.Slice {
			return nil, fmt.Errorf("%v is no list", from)
		}
	}
	return value, nil
}

// configKeys returns the keys of Config in the order of its fields.
func configKeys() []string {
	var keys []string
	for f := range reflect.TypeFor[Config]().Fields() {
		keys = append(keys, f.Tag.Get("koanf"))
	}
	return keys
}

func configField(cfg *Config, key string) reflect.Value {
	return reflect.ValueOf(cfg).Elem().Field(slices.Index(configKeys(), key))
}

// strictYAML refuses what the parser would drop or quote: further documents,
// and files that hold no mapping, such as a token given by mistake.
type strictYAML struct{ *koanfyaml.YAML }

// Unmarshal parses one document that is a mapping, or an empty one.
func (y strictYAML) Unmarshal(b []byte) (map[string]any, error) {
	out, err := y.YAML.Unmarshal(b)
	var kind *yaml.TypeError
	if errors.As(err, &kind) {
		return nil, errors.New("not a mapping of keys to values without duplicates")
	}
	if err != nil {
		return nil, err
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	var doc yaml.Node
	if dec.Decode(&doc) == nil && !errors.Is(dec.Decode(&doc), io.EOF) {
		return nil, errors.New("more than one document")
	}
	return out, nil
}
