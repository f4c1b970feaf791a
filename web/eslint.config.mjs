import eslint from "@eslint/js";
import tseslint from "typescript-eslint";

// Ways by which text could become markup or script.
const sinks = ["innerHTML", "outerHTML", "insertAdjacentHTML", "srcdoc", "setHTMLUnsafe", "write", "writeln"].map((property) => ({
  property,
  message: "Text enters the page only as text.",
}));

export default tseslint.config(
  { ignores: ["src/gen/**", "node_modules/**", "*.mjs", "test/run.mjs"] },
  eslint.configs.recommended,
  ...tseslint.configs.recommendedTypeChecked,
  {
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    rules: {
      "no-restricted-properties": ["error", ...sinks],
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-control-regex": "off",
      "@typescript-eslint/restrict-template-expressions": "off",
      "max-lines-per-function": ["error", { max: 70 }],
    },
  },
  { files: ["test/**"], rules: { "@typescript-eslint/no-floating-promises": "off", "max-lines-per-function": "off" } },
);
