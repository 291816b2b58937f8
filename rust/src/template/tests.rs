//! Against texts that Jinja2 rendered, and against templates that mean harm.

use super::*;
use serde_json::{Value as Json, json};
use std::path::Path;
use std::time::{Duration, Instant};

fn data(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path);
    std::fs::read_to_string(path).unwrap()
}

fn render(source: &str, context: &Json) -> Result<String> {
    ChatTemplate::new(source, Some("<s>"), Some("</s>"))?.render(context)
}

#[test]
fn model_templates_render_as_the_reference_does() {
    for name in ["glm4_moe", "glm4_moe_lite", "mixtral", "olmoe", "qwen3_moe"] {
        let tokens: Json =
            serde_json::from_str(&data(&format!("oracle/{name}/tokenizer_config.json"))).unwrap();
        let template = ChatTemplate::new(
            &data(&format!("oracle/{name}/chat_template.jinja")),
            tokens["bos_token"].as_str(),
            tokens["eos_token"].as_str(),
        )
        .unwrap();
        let reference: Json =
            serde_json::from_str(&data(&format!("oracle/{name}/reference.json"))).unwrap();
        let cases = reference["chat_cases"].as_array().unwrap();
        assert!(!cases.is_empty());
        for case in cases {
            assert_eq!(template.render(case).unwrap(), case["text"].as_str().unwrap());
        }
    }
}

#[test]
fn conversations_render_as_jinja2_renders_them() {
    let table: Json = serde_json::from_str(&data("templates/expected.json")).unwrap();
    let rendered = table["rendered"].as_array().unwrap();
    assert!(rendered.len() > 20);
    for case in rendered {
        let (name, context) =
            (case["template"].as_str().unwrap(), case["context"].as_str().unwrap());
        let source = data(&format!("templates/{name}.jinja"));
        let template = ChatTemplate::new(&source, Some("<s>"), Some("</s>")).unwrap();
        let result = template.render(&table["contexts"][context]);
        if let Some(text) = case["text"].as_str() {
            assert_eq!(result.unwrap(), text, "{name} with {context}");
        } else {
            let error = result.expect_err("Jinja2 raised").to_string();
            let reason = case["error"].as_str().unwrap();
            assert!(error.contains(reason), "{name} with {context}: {error} lacks {reason}");
        }
    }
}

#[test]
fn generation_tags_are_transparent() {
    let source =
        "a {% generation %}b{{ x }}{%- endgeneration -%}  c{%generation%}d{% endgeneration %}";
    assert_eq!(render(source, &json!({"x": 1})).unwrap(), "a b1cd");
    assert_eq!(without_generation_tags("{% if generation %}{%"), "{% if generation %}{%");
}

#[test]
fn errors_are_one_line() {
    for source in [
        "{{ raise_exception('two\nlines') }}",
        "{% if %}",
        "{{ nothing.at.all }}",
        "{{ 1 | no_such_filter }}",
        "{% include 'other' %}",
        "{% extends 'other' %}",
        "{{ undefined_function() }}",
    ] {
        let Err(Error::Template(text)) = render(source, &json!({})) else {
            panic!("{source} renders");
        };
        assert!(!text.is_empty() && !text.contains('\n') && text.len() < 1100, "{text}");
    }
    let error = render("{{ raise_exception('Roles must alternate') }}", &json!({})).unwrap_err();
    assert_eq!(error.to_string(), "chat template: Roles must alternate (line 1)");
    assert!(render("", &json!([])).is_err());
    assert!(ChatTemplate::new(&" ".repeat(MAX_SOURCE_BYTES + 1), None, None).is_err());
}

#[test]
fn the_present_date_is_known() {
    let date = render("{{ strftime_now('%Y-%m-%d') }}", &json!({})).unwrap();
    assert!(date.len() == 10 && date.starts_with("20"), "{date}");
}

#[test]
fn a_long_conversation_has_fuel_enough() {
    let messages: Vec<Json> = (0..2000)
        .map(|i| json!({"role": if i % 2 == 0 { "user" } else { "assistant" }, "content": "word ".repeat(1000)}))
        .collect();
    let source = data("templates/reasoning.jinja");
    let text =
        render(&source, &json!({"messages": messages, "add_generation_prompt": true})).unwrap();
    assert!(text.len() > 9_000_000);
}

#[test]
fn bombs_end_with_an_error_soon() {
    let deep_source = format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000));
    let deep_list = format!("{{{{ {}{} }}}}", "[".repeat(100_000), "]".repeat(100_000));
    let nested = "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% for j in range(99999) %}\
                  {% set ns.x = [ns.x] %}{% endfor %}{% endfor %}";
    for source in [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(999999999) %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(25) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
        "{{ 'a' * 999999999999 }}",
        "{{ 'aaaaaaaa' * 99999999 }}",
        "{% for i in range(99999) %}{{ 'a' * 99999 }}{% endfor %}",
        "{{ 'aaaaaaaa'.replace('', 'b' * 9999999) }}",
        "{{ ('a,' * 9999999).split(',') | join('b' * 9999) }}",
        "{{ range(99999) | list | tojson(indent=99999999) * 99 }}",
        "{% set x = 'ab' * 99999 %}{% for i in range(99999) %}{{ x | tojson | tojson | tojson }}{% endfor %}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ 9 ** 9 ** 9 ** 9 }}",
        "{{ lipsum(999999999) }}",
        "{% for i in range(99) recursive %}{{ loop(range(99)) }}{% endfor %}",
        &deep_source,
        &deep_list,
        nested,
    ] {
        let start = Instant::now();
        let result = render(source, &json!({}));
        let shown: String = source.chars().take(100).collect();
        assert!(result.is_err(), "{shown} renders");
        // Well under a second on a machine that does nothing else.
        assert!(start.elapsed() < Duration::from_secs(5), "{shown}: {:?}", start.elapsed());
    }
}

#[test]
fn values_nested_by_a_loop_do_not_crash() {
    for (rounds, use_of_it) in [
        (9999, ""),
        (50, ""),
        (50, "{{ ns.x }}"),
        (50, "{{ ns.x | tojson }}"),
        (50, "{{ 'a' ~ ns.x }}"),
        (50, "{{ ns.x == ns.y }}"),
        (50, "{{ ns.x < ns.y }}"),
        (50, "{{ [ns.x, ns.y] | unique }}"),
        (50, "{{ [ns.x, ns.y] | sort }}"),
        (50, "{{ {ns.x: 1} }}"),
        (50, "{{ '%s' | format(ns.x) }}"),
        (50, "{{ ns.x | pprint }}"),
        (50, "{{ ns.x | upper }}"),
    ] {
        let source = format!(
            "{{% set ns = namespace(x=[], y=[]) %}}{{% for i in range({rounds}) %}}\
             {{% for j in range(1000) %}}{{% set ns.x = [ns.x] %}}{{% set ns.y = [ns.y] %}}\
             {{% endfor %}}{{% endfor %}}{use_of_it}"
        );
        let start = Instant::now();
        let _ = render(&source, &json!({}));
        assert!(start.elapsed() < Duration::from_secs(5), "{use_of_it}: {:?}", start.elapsed());
    }
}

#[test]
fn syntax_that_nests_by_chains_is_refused() {
    for source in [
        format!("{{{{{}1}}}}", "-".repeat(30_000)),
        format!("{{{{ {}1 }}}}", "not ".repeat(100_000)),
        format!("{{{{ {}1 }}}}", "1~".repeat(50_000)),
        format!("{{{{ a{} }}}}", ".b".repeat(50_000)),
        format!("{{{{ a{} }}}}", "|string".repeat(50_000)),
        format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(50_000)),
    ] {
        assert!(matches!(ChatTemplate::new(&source, None, None), Err(Error::Template(_))));
    }
}

#[test]
fn syntax_at_the_limits_compiles_and_is_released() {
    for source in [
        format!("{{{{ {}1 }}}}", "-".repeat(8_000)),
        format!("{{{{ {}1 }}}}", "1~".repeat(4_000)),
        format!("{{{{ a{} }}}}", ".b".repeat(4_000)),
        format!("{{{{ a{} }}}}", "|string".repeat(4_000)),
        format!("{{{{ a{} }}}}", "(b)".repeat(2_700)),
        format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(4_000)),
    ] {
        let _ = render(&source, &json!({}));
    }
}
